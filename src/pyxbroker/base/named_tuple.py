"""`typing.NamedTuple` without the cost of its annotations.

With `from __future__ import annotations` the annotations of a class are strings, and `typing`
compiles each of them for tools that read types at run time. For the classes that a start imports
this took 4 % of the start. Type checkers see `typing.NamedTuple`.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    _SET_BY_NAMEDTUPLE = frozenset(("__annotations__", "__module__", "__name__"))

    class _Meta(type):
        """Return a subclass of `tuple` for a class with annotated fields."""

        def __new__(cls, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            annotations = namespace.get("__annotations__", {})
            defaults = [namespace[field] for field in annotations if field in namespace]
            made = namedtuple(
                name, annotations, defaults=defaults, module=namespace.get("__module__")
            )
            made.__annotations__ = made.__new__.__annotations__ = annotations
            for key, value in namespace.items():
                if key not in annotations and key not in _SET_BY_NAMEDTUPLE:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Meta):
        pass
