"""Key stores of JDK 17's keytool, and what is to be believed of them in PEM.

The repository has them as text, since it has no binaries.
"""

from __future__ import annotations

import atexit
import base64
import functools
import shutil
import tempfile
from pathlib import Path

KEPT = Path(__file__).parents[1] / "tests" / "data" / "key_stores"
PACKED = ".base64"


@functools.cache
def key_stores() -> Path:
    """A directory of this process with the files, which is gone when it ends."""
    directory = Path(tempfile.mkdtemp(prefix="key-stores-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for each in KEPT.iterdir():
        data = each.read_bytes()
        if each.suffix == PACKED:
            data = base64.b64decode(data)
        (directory / each.name.removesuffix(PACKED)).write_bytes(data)
    return directory
