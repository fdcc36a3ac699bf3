"""kazoo's client, with the one thing added that ordered operations need."""

from __future__ import annotations

import logging
import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_jitter": 0.4, "max_delay": 2.0}
"""For ever, ever more slowly; delays in seconds."""

# The store logs what an operator needs to know of the connection; kazoo's own is about attempts.
_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)


class GatedClient(KazooClient):
    """kazoo's client with a gate: once a connection is lost, no request gets behind the lost ones.

    kazoo fails all requests that it has when the connection breaks, and takes new ones at once for
    the next connection. Those would be sent before the lost ones are repeated. So the gate closes
    before kazoo looks at its requests, and the loop opens it when it has sorted out the lost ones.
    """

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        self.gate = threading.Lock()
        self.is_gate_open = False
        self._has_connection = False
        super().__init__(
            hosts=hosts, timeout=session_timeout_s, connection_retry=_RECONNECT, logger=_log
        )

    def _session_callback(self, state: Any) -> None:
        """On kazoo's thread, for every change of the connection's state."""
        with self.gate:
            self._has_connection = state == KeeperState.CONNECTED
            if not self._has_connection:
                self.is_gate_open = False
        super()._session_callback(state)

    def open_gate(self) -> bool:
        """Lets requests through if there is a connection, and says whether."""
        with self.gate:
            self.is_gate_open = self._has_connection
            return self.is_gate_open

    def create_outside_async(self, path: str) -> Any:
        """Creates an empty node whose path does not begin at the chroot."""
        chroot, self.chroot = self.chroot, ""
        try:
            return self.create_async(path, b"")
        finally:
            self.chroot = chroot
