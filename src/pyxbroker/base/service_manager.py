"""Notifications to the service manager that started the process: systemd's sd_notify protocol."""

from __future__ import annotations

import os


def notify(state: str) -> None:
    """Send a state such as READY=1 to the socket NOTIFY_SOCKET, if the environment has one.

    Errors of the socket are ignored: a broker serves its clients without a service manager, too.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    import socket

    if address.startswith("@"):  # an abstract name
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), socket.MSG_DONTWAIT, address)
        except OSError:
            return
