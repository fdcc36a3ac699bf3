"""The id of a transaction."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.signed import signed

_WRAP = 1 << 64


class TxnId(NamedTuple):
    """The id of a transaction: two signed 64-bit numbers, which commands have without the sign."""

    most: int
    """The id of the coordinator."""
    least: int
    """The number of the transaction at its coordinator."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"

    @classmethod
    def of_wire(cls, most: int, least: int) -> TxnId:
        """Return the id that a command has in its fields txnid_most_bits and txnid_least_bits."""
        return cls(signed(most), signed(least))

    def wire(self) -> tuple[int, int]:
        """Return the fields txnid_most_bits and txnid_least_bits of a command."""
        return self.most % _WRAP, self.least % _WRAP
