"""The ready file of a broker (`--ready-file`): its URLs and ports for scripts, while it serves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker import __version__
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli.serving import Observer

if TYPE_CHECKING:
    from pyxbroker.cli.serving import Service

MODE = 0o644


class ReadyFile(Observer):
    """A file that exists while the broker serves.

    Creating the object removes a file that a killed broker has left.
    """

    def __init__(self, path: Path, data_directory: Path | None = None) -> None:
        """Raise ConfigError if the file cannot be written."""
        self._data_directory = data_directory
        self._path = path.absolute()
        self._temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self.on_stop()
            os.close(self._open_temporary())
            self._temporary.unlink()
        except OSError as error:
            raise ConfigError(
                f"The ready file {self._path} cannot be written: {error.strerror}."
                " Choose another one with --ready-file."
            ) from None

    def on_ready(self, service: Service) -> None:
        """Write the file, so that a reader finds it complete or not at all. Raises OSError."""
        addresses = service.broker.addresses
        fields = {
            "pid": os.getpid(),
            "version": __version__,
            "brokerServiceUrl": addresses.broker_url or None,
            "brokerServiceUrlTls": addresses.broker_url_tls or None,
            "webServiceUrl": (addresses.web_url or None) if service.web_port else None,
            "webServiceUrlTls": addresses.web_url_tls or None,
            "brokerServicePort": service.broker_port or None,
            "brokerServicePortTls": service.broker_port_tls or None,
            "webServicePort": service.web_port or None,
            "webServicePortTls": service.web_port_tls or None,
            "dataDirectory": self._data_directory and str(self._data_directory),
        }
        with os.fdopen(self._open_temporary(), "w") as file:
            file.write(f"{json.dumps(fields, indent=2)}\n")
        self._temporary.replace(self._path)

    def on_stop(self) -> None:
        """Delete the file. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _open_temporary(self) -> int:
        # In a container a broker that was killed had the same process id.
        self._temporary.unlink(missing_ok=True)
        # O_EXCL follows no symbolic link, which another user may have put into /tmp.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._temporary, flags, MODE)
