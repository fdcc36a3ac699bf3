"""The memory that a connection reads into."""

from __future__ import annotations

READ_BYTES = 1 << 20
"""The size of the memory; it grows for a larger frame."""

RETAINED_BYTES_MAX = 8 << 20
"""Memory larger than this is replaced as soon as it is empty."""


class ReceiveBuffer:
    """Received bytes that are not consumed yet, in one contiguous piece of memory."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(READ_BYTES))
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    def waiting(self) -> memoryview:
        """The bytes that are not consumed yet; valid until the next call of another method."""
        return self._view[self._begin : self._end]

    def consume(self, size: int) -> None:
        """Drop `size` bytes from the beginning."""
        self._begin += size
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._view) > RETAINED_BYTES_MAX:
                self._view = memoryview(bytearray(READ_BYTES))

    def room(self) -> memoryview:
        """Return the memory for the next bytes, which is never empty; `add` takes their number."""
        waiting = self._end - self._begin
        if waiting > len(self._view) // 2:
            self._move(memoryview(bytearray(2 * len(self._view))))
        elif self._end > len(self._view) // 2:
            self._move(self._view)
        return self._view[self._end :]

    def add(self, size: int) -> None:
        """Count bytes that were written to the start of `room`."""
        self._end += size

    def _move(self, to: memoryview) -> None:
        waiting = self._end - self._begin
        to[:waiting] = self._view[self._begin : self._end]
        self._view, self._begin, self._end = to, 0, waiting
