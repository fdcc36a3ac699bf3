"""The audit log in a file of its own (auditLogFile); imported where that is set."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TextIO

from pyxbroker.base.directories import FILE_MODE
from pyxbroker.base.log import AUDIT, AuditHandler
from pyxbroker.base.properties import ConfigError


class AuditFileHandler(AuditHandler):
    """Appends the lines to a file, which is opened again when another file, or none, has its name:
    so that logrotate may rename it. Raises OSError when it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._open())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not self._has_its_name():
                former = self.stream
                self.stream = self._open()
                former.close()
        except OSError:
            self.handleError(record)  # the line goes to the former file
        super().emit(record)

    def _has_its_name(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.stream.fileno()))

    def _open(self) -> TextIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self._path, flags, FILE_MODE), "a", encoding="ascii")


def write_audit_to(path: Path) -> None:
    """Write the audit log to a file instead of stderr. Raises ConfigError."""
    try:
        handler = AuditFileHandler(path)
    except OSError as error:
        raise ConfigError(f"auditLogFile: {path} cannot be written: {error.strerror}.") from None
    logging.getLogger(AUDIT).handlers[:] = [handler]
