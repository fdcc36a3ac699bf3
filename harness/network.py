"""Network namespaces on one bridge, and links between two of them that delay or lose packets.

`isolate` runs the program again in namespaces of its own for processes, mounts and the network.
When the program ends, the kernel ends all its processes and removes all namespaces, interfaces and
mounts that it made, also after SIGKILL.

The packets of an impaired link go through a pair of TUN devices and a thread of this process, so
that established connections continue as they would on a bad network. Kernels without netem can do
that, too.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import itertools
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple, NoReturn

_MARK = "PYXBROKER_ISOLATED"
_BRIDGE = "bridge0"
_PREFIX = "10.77.0."
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_MTU = 1500


def isolate(module: str, arguments: list[str]) -> None:
    """Run the module again in namespaces of its own; return in the process that has them."""
    if os.getpid() == 1 and os.environ.get(_MARK) == "1":
        _ip("link", "set", "lo", "up")
        Path("/run/netns").mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        return
    _execute_isolated(module, arguments)


def _execute_isolated(module: str, arguments: list[str]) -> NoReturn:
    for command, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(command) is None:
            sys.exit(f"Namespaces need `{command}`: apt-get install {package}")
    if os.geteuid() != 0:
        sys.exit("Namespaces need root: run this command as root.")
    os.environ[_MARK] = "1"
    kinds = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    os.execvp("unshare", ["unshare", *kinds, sys.executable, "-m", module, *arguments])


class Impairment(NamedTuple):
    """Treatment of the packets of a link, in one direction or in both."""

    delay_s: float = 0.0
    loss: float = 0.0
    """Share of packets that are dropped; 1: the link is cut."""


class Network:
    """Hosts (network namespaces) on a bridge, which this process can reach as well."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._addresses: dict[str, str] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._impaired: set[_Link] = set()
        self._relay = _Relay()
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("address", "add", f"{_PREFIX}1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")

    def add_host(self, name: str) -> str:
        """Create a namespace with an interface on the bridge; return its address."""
        number = len(self._addresses) + 2
        address = self._addresses[name] = f"{_PREFIX}{number}"
        _ip("netns", "add", name)
        _ip("link", "add", f"veth{number}", "type", "veth", "peer", "eth0", "netns", name)
        _ip("link", "set", f"veth{number}", "master", _BRIDGE, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        return address

    @property
    def packets(self) -> Counter[str]:
        """The number of packets that impaired links forwarded and dropped."""
        return self._relay.packets

    def prefix(self, name: str) -> list[str]:
        """Return the beginning of a command line that runs in a host."""
        return ["ip", "netns", "exec", name]

    def impair(
        self, one: str, other: str, impairment: Impairment, *, is_one_way: bool = False
    ) -> None:
        """Delay or drop the packets between two hosts from now on, or those from the first one to
        the other one only.
        """
        names = _pair(one, other)
        link = self._links.get(names)
        if link is None:
            link = self._links[names] = _Link([(name, self._addresses[name]) for name in names])
            self._relay.add(link, self._random)
        back = Impairment() if is_one_way else impairment
        link.impairments = {one: impairment, other: back}
        link.set_routes("replace")
        self._impaired.add(link)

    def restore(self, one: str, other: str) -> None:
        """Let the packets between two hosts take the bridge again."""
        link = self._links[_pair(one, other)]
        link.set_routes("del")
        self._impaired.remove(link)

    def restore_all(self) -> None:
        """Let all packets take the bridge again."""
        while self._impaired:
            self._impaired.pop().set_routes("del")


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


class _Link:
    """A TUN device in each of two hosts."""

    def __init__(self, hosts: list[tuple[str, str]]) -> None:
        self.impairments = {host: Impairment() for host, _ in hosts}
        """By the host that sends the packets."""
        self.hosts = hosts
        self.descriptors = []
        for (host, _), (peer, _) in zip(hosts, reversed(hosts), strict=True):
            device = f"to-{peer}"
            self.descriptors.append(_open_tun(device))
            _ip("link", "set", device, "netns", host)
            _ip("-n", host, "link", "set", device, "mtu", str(_MTU), "up")

    def set_routes(self, action: str) -> None:
        for (host, address), (peer, there) in zip(self.hosts, reversed(self.hosts), strict=True):
            route = ("route", action, there, "dev", f"to-{peer}", "src", address)
            _ip("-n", host, *route)


class _Relay:
    """The thread that moves packets between the TUN devices of all impaired links."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._started = False
        self.packets: Counter[str] = Counter()

    def add(self, link: _Link, chance: random.Random) -> None:
        one, other = link.descriptors
        (here, _), (there, _) = link.hosts
        for host, source, target in ((here, one, other), (there, other, one)):
            self._selector.register(source, selectors.EVENT_READ, (link, host, target, chance))
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="relay", daemon=True).start()

    def _run(self) -> None:
        while True:
            # A link that is added meanwhile is served after at most a tenth of a second.
            wait_s = min(0.1, max(0.0, self._due[0][0] - time.monotonic())) if self._due else 0.1
            for key, _ in self._selector.select(wait_s):
                self._take(key.fd, *key.data)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, target, packet = heapq.heappop(self._due)
                _forward(target, packet)

    def _take(
        self, source: int, link: _Link, host: str, target: int, chance: random.Random
    ) -> None:
        delay_s, loss = link.impairments[host]
        try:
            while packet := os.read(source, _MTU + 100):
                is_lost = chance.random() < loss
                self.packets["dropped" if is_lost else "forwarded"] += 1
                if not is_lost:
                    due = time.monotonic() + delay_s
                    heapq.heappush(self._due, (due, next(self._numbers), target, packet))
        except BlockingIOError:
            return


def _forward(target: int, packet: bytes) -> None:
    try:
        os.write(target, packet)
    except OSError as error:
        # A full queue drops packets, and so does a device that is down.
        if error.errno not in (errno.EAGAIN, errno.EIO, errno.EINVAL, errno.ENOBUFS):
            raise


def _open_tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    return descriptor


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}")
