"""A small file system of its own (ext4 on a loop device), to be filled to the last block.

Mounting wants root, as the tests have it in continuous integration; without it they fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 4096
OTHERS = "others"


class SmallDisk:
    """A mounted file system; `path` is its root."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Somebody else takes everything that is free, to the last block."""
        descriptor = os.open(self.path / OTHERS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            for size in (1 << 20, _BLOCK):
                with contextlib.suppress(_NoSpace):
                    while True:
                        _write(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Somebody else frees what they took."""
        (self.path / OTHERS).unlink()
        os.sync()


class _NoSpace(Exception):
    """There is no further block."""


def _write(descriptor: int, size: int) -> None:
    try:
        if os.write(descriptor, bytes(size)) < size:
            raise _NoSpace
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _NoSpace from None
        raise


@contextlib.contextmanager
def small_disk(directory: Path, mib: int) -> Iterator[SmallDisk]:
    """A file system of that size below a directory, unmounted in the end whatever happens."""
    image, mount = directory / "disk.img", directory / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(mib << 20)
    # -m 0: no blocks that only root, who runs these tests, could take.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield SmallDisk(mount)
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        image.unlink()
