"""`base/named_tuple.py` makes the classes that `typing` makes."""

from __future__ import annotations

import pickle
import typing

from pyxbroker.base.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y

    @classmethod
    def origin(cls) -> Ours:
        return cls(0, 0)

    def __str__(self) -> str:
        return f"{self.x}/{self.y}"


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y

    @classmethod
    def origin(cls) -> Theirs:
        return cls(0, 0)

    def __str__(self) -> str:
        return f"{self.x}/{self.y}"


class Further(Ours):
    """One that is a subclass of such a class."""

    def far(self) -> int:
        return self.sum * 2


def test_the_class_is_what_typing_makes() -> None:
    ours, theirs = (
        {
            name: getattr(each, name)
            for name in ("__bases__", "__doc__", "__module__", "_fields", "_field_defaults")
        }
        for each in (Ours, Theirs)
    )
    assert ours == theirs
    assert set(vars(Ours)) - set(vars(Theirs)) == set()
    assert (Ours.__name__, Ours.__qualname__) == ("Ours", "Ours")


def test_fields_and_methods_are_there() -> None:
    assert Ours(1) == Ours(x=1, y=2) == (1, 2)
    assert (Ours(1).sum, str(Ours(1)), repr(Ours(1))) == (3, "1/2", "Ours(x=1, y=2)")
    assert Ours.origin()._replace(y=4) == (0, 4)
    assert pickle.loads(pickle.dumps(Ours(3))) == Ours(3)


def test_a_subclass_has_the_fields_of_its_base() -> None:
    assert Further(1).far() == 6
    assert isinstance(Further(1), Ours)
