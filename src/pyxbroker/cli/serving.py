"""The parts that commands with a running broker share: options, start, signals, shutdown, banner.

Modules that the first message does not need are imported after the broker's port is open.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyxbroker import __version__
from pyxbroker.base.collector import Collector
from pyxbroker.base.log import configure, get_role_logger, write_repeated
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.service_manager import notify
from pyxbroker.base.times import iso_ms
from pyxbroker.cli import Parser, no_such
from pyxbroker.settings.config import PORT_MAX, SCHEMA, Config
from pyxbroker.settings.names import ALIASES, STANDALONE_ALIASES
from pyxbroker.settings.sources import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from pyxbroker.roles.broker import ClusterBroker
    from pyxbroker.roles.standalone import Standalone

    Service = Standalone | ClusterBroker
    Start = Callable[[Callable[[str], None]], Awaitable[Service]]

log = get_role_logger()

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
BOLD = "\x1b[1m{}\x1b[0m"
JOURNAL_CHECK_INTERVAL_S = 0.5
LOG_INTERVAL_S = 5.0
START_LOG_INTERVAL_S = 1.5
STOP_LOG_INTERVAL_S = 3.0
SWITCH_S = 0.0005
"""Longest time that another thread may hold the GIL while the event loop waits for it."""

BANNER = """\
{title} is ready in {ready_ms} ms

{broker}{web}{storage}

Try it in another terminal (pip install pulsar-client):

  import pulsar
  client = pulsar.Client("{broker_url}"{how})
  client.create_producer("hello").send(b"hello, world")
  print(client.create_reader("hello", pulsar.MessageId.earliest).read_next().data())

{elsewhere}Ctrl-C stops the broker cleanly. Settings: pyxbroker config --markdown
"""

WEB_LINES = """\
  admin    {url}/admin/v2/clusters
  metrics  {url}/metrics
"""


ELSEWHERE = """\
Clients on other hosts need an address that they can reach: --set advertisedAddress=NAME
"""


SIGHUP_IGNORED = (
    "SIGHUP is ignored: TLS files are reloaded automatically; other settings change by REST or with"
    " a restart"
)


class StartError(Exception):
    """Raised when the process cannot start or continue; the message is shown to the operator."""


class StorageLine(NamedTuple):
    """The line of the banner about what is stored where."""

    name: str
    place: str


class Observer:
    """An object that is notified when the process starts, serves clients, and begins to stop."""

    def on_start(self) -> None:
        """Do nothing. Called in the event loop before the start."""

    def on_ready(self, service: Service) -> None:
        """Do nothing. Called when clients are served."""

    def on_stop(self) -> None:
        """Do nothing. Called when the process begins to stop."""


def _log_ignored(config: Config) -> None:
    """Log a line for each kind of settings without effect."""
    ignored = config.ignored
    if ignored.at_default:
        log.info(
            "settings of Pulsar have no effect here",
            number=len(ignored.at_default),
            keys=",".join(ignored.at_default),
        )
    if ignored.wanted:
        log.warning(
            "settings enable features of Pulsar that this broker does not have",
            number=len(ignored.wanted),
            keys=",".join(ignored.wanted),
        )
    if ignored.unknown:
        log.warning(
            "unknown settings are ignored",
            number=len(ignored.unknown),
            keys=config.explain_unknown(),
        )
    if ignored.older:
        log.warning(
            "deprecated names of settings are used",
            keys=", ".join(f"{older} (now {newer})" for older, newer in ignored.older.items()),
        )
    if ignored.stores:
        log.warning(
            "metadata stores in the file or the environment are ignored, as by Pulsar's standalone;"
            " name the store with --metadata",
            keys=", ".join(f"{key}={url}" for key, url in ignored.stores.items()),
        )
    if ignored.bare:
        log.warning(
            "environment variables are named like settings and have no effect; put"
            f" {ENVIRONMENT_PREFIX} in front of their names",
            variables=", ".join(ignored.bare),
        )
    if ignored.repeated:
        log.warning(
            "settings are set twice in a file, the last value counts",
            keys=",".join(f"{key} ({place})" for key, place in ignored.repeated.items()),
        )


def add_options(parser: Parser, file: str, metadata: str) -> None:
    """Add the options that each of these commands has, with the help of two of them."""
    add = parser.options.add_argument
    add("--config", metavar="FILE", help=file)
    add(
        "--broker-port",
        type=_port,
        metavar="N",
        help="Port of the binary protocol [6650]; 0: any free port.",
    )
    add(
        "--web-port",
        type=_port,
        metavar="N",
        help="Port of REST and /metrics [8080]; 0: any free port.",
    )
    add("--metadata", metavar="URL", help=metadata)
    add(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Any other setting; may be repeated.",
    )
    add(
        "--ready-file",
        metavar="FILE",
        help="JSON with URLs, ports and process id, present while clients are served.",
    )
    add(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        default="INFO",
        metavar="LEVEL",
        help="Level of the log on stderr: %(choices)s [%(default)s].",
    )


def load_settings(options: Namespace, *, is_cluster: bool = False) -> Config:
    """Read the settings of the file, the environment and these options, and configure the logs.
    Raises ConfigError.
    """
    configure(options.log_level)
    named = {
        "brokerServicePort": options.broker_port,
        "webServicePort": options.web_port,
        "metadataStoreUrl": options.metadata,
    }
    overrides = {key: str(value) for key, value in named.items() if value is not None}
    overrides.update(options.set)
    file = Path(options.config) if options.config else None
    config = Config.load(file, os.environ, overrides, is_cluster=is_cluster)
    _log_ignored(config)
    if config.auditLogFile:
        from pyxbroker.base.audit_file import write_audit_to

        write_audit_to(Path(config.auditLogFile))
    return config


def observers_of(options: Namespace, data_directory: Path | None = None) -> list[Observer]:
    """Return the observers that the options name. Raises ConfigError."""
    if options.ready_file is None:
        return []
    from pyxbroker.cli.ready_file import ReadyFile

    return [ReadyFile(Path(options.ready_file), data_directory)]


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= PORT_MAX):
        raise ArgumentTypeError(f"{text!r} is not a port; expected 0 to {PORT_MAX}.")
    return int(text)


def _setting(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    key = name.strip()
    if not equals:
        raise ArgumentTypeError(
            f"{pair!r}: expected KEY=VALUE with a key of `pyxbroker config --markdown`."
        )
    if key not in SCHEMA and key not in ALIASES and key not in STANDALONE_ALIASES:
        raise ArgumentTypeError(no_such("setting of `pyxbroker config`", key, SCHEMA))
    return key, text


def run(
    config: Config, start: Start, storage: StorageLine, observers: Sequence[Observer] = ()
) -> None:
    """Serve until SIGINT or SIGTERM, then shut down cleanly. Raise StartError.

    `start` gets a function that notes what it waits for.
    """
    # Most objects that a start creates stay in memory, so collecting garbage would free nothing.
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    import uvloop

    with _StartLog() as start_log:
        uvloop.run(_serve(config, start, storage, start_log, observers))


class _StartLog:
    """Logs the current step of a slow start every START_LOG_INTERVAL_S; nothing if it is empty.

    The log lines come from a thread, because a step may block the event loop.
    """

    def __init__(self) -> None:
        self._step = "imports"
        self._is_over = threading.Event()

    def __enter__(self) -> _StartLog:
        threading.Thread(target=self._run, name="start-log", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, step: str) -> None:
        self._step = step

    def end(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(START_LOG_INTERVAL_S):
            seconds = round(time.monotonic() - began, 1)
            if self._step:
                log.info("the start is waiting", waits_for=self._step, seconds=seconds)


async def _serve(
    config: Config,
    start: Start,
    storage: StorageLine,
    start_log: _StartLog,
    observers: Sequence[Observer],
) -> None:
    stopping = _watch_signals()
    for observer in observers:
        observer.on_start()
    starting = asyncio.ensure_future(start(start_log.begin))
    await _first_of(starting, stopping)
    stopped = time.monotonic()
    start_log.end()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if starting.cancelled():
        _log_stopped(stopped)
        return
    error = starting.exception()
    if error is not None:
        raise _explain(error) from None
    service = starting.result()
    notify("READY=1")
    try:
        await _serve_until_stopped(config, storage, service, stopping, observers)
    finally:
        # Even after a failed shutdown: uvloop cannot close a loop that is watched.
        service.stop_watch()


async def _serve_until_stopped(
    config: Config,
    storage: StorageLine,
    service: Service,
    stopping: asyncio.Future[None],
    observers: Sequence[Observer],
) -> None:
    _print_banner(config, storage, service)
    for observer in observers:
        observer.on_ready(service)
    await service.broker.import_late()
    Collector(asyncio.get_running_loop().call_soon_threadsafe)
    _keep_writing_counts()
    failed = asyncio.ensure_future(_wait_failed(config, service))
    await _first_of(failed, stopping)
    reason = failed.result() if failed.done() else None
    failed.cancel()
    for observer in observers:
        observer.on_stop()
    try:
        await _stop(service, config.brokerShutdownTimeoutMs / 1000)
    except OSError as refused:
        # After a failed journal its close fails, too. Report the first reason.
        why = f"{refused.strerror or refused} ({refused.filename or storage.place})"
        reason = reason or f"{why}; acknowledged messages are safe, the next start recovers them"
    if reason is not None:
        raise StartError(f"The broker stopped: {reason}.")


def _keep_writing_counts() -> None:
    """Log the counts of repeated lines periodically, even if nothing else is logged."""
    write_repeated()
    asyncio.get_running_loop().call_later(LOG_INTERVAL_S, _keep_writing_counts)


async def _wait_failed(config: Config, service: Service) -> str:
    """Wait for a failure that must end this process, and return the reason."""
    failed = asyncio.ensure_future(service.wait_failed())
    try:
        while config.shutdownOnJournalFailure and not failed.done():
            if reason := service.journal_failure():
                return reason
            await asyncio.wait([failed], timeout=JOURNAL_CHECK_INTERVAL_S)
        return await failed
    finally:
        failed.cancel()


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _stop(service: Service, timeout: float) -> None:
    """Stop the service within the configured time."""
    notify("STOPPING=1")
    started = time.monotonic()
    reporting = asyncio.ensure_future(_report_stop(service, time.time() + timeout))
    try:
        await asyncio.wait_for(service.stop(), timeout)
    except asyncio.TimeoutError:
        raise StartError(
            f"The broker did not stop within {timeout:g} s (brokerShutdownTimeoutMs);"
            " acknowledged messages are safe, the next start recovers them."
        ) from None
    finally:
        reporting.cancel()
    _log_stopped(started)


async def _report_stop(service: Service, until_s: float) -> None:
    """Log periodically what a slow stop waits for, and the time at which it is given up."""
    while True:
        await asyncio.sleep(STOP_LOG_INTERVAL_S)
        log.info(
            "the stop is waiting; a second signal ends the process immediately",
            waits_for=service.stop_waits_for(),
            until=iso_ms(round(until_s * 1000)),
        )


def _log_stopped(started: float) -> None:
    log.info("stopped", ms=round((time.monotonic() - started) * 1000))


def _watch_signals() -> asyncio.Future[None]:
    """Return a future that the first SIGINT or SIGTERM resolves; the second one exits."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if stopping.done():
            # Exit without flushing: the next start recovers.
            os._exit(128 + number)
        log.info("stopping", signal=signal.Signals(number).name)
        stopping.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, log.info, SIGHUP_IGNORED)
    return stopping


def _explain(error: BaseException) -> BaseException:
    """Return a StartError for an expected error of a start, and any other error unchanged."""
    from pyxbroker.bookie.errors import DataError
    from pyxbroker.metadata.store import MetadataError

    if isinstance(error, OSError) and error.filename:
        return StartError(f"{error.filename} cannot be used: {error.strerror}.")
    if isinstance(error, OSError):
        return StartError(error.strerror or str(error))
    if isinstance(error, (MetadataError, ConfigError, DataError)):
        return StartError(f"{error}")
    return error


def _print_banner(config: Config, storage: StorageLine, service: Service) -> None:
    from pyxbroker.base.listening import is_loopback

    addresses = service.broker.addresses
    urls = [each for each in (addresses.broker_url, addresses.broker_url_tls) if each]
    # The broker's web URL identifies it, even if nothing listens there.
    web_url = addresses.web_url if service.web_port else ""
    webs = [each for each in (web_url, addresses.web_url_tls) if each]
    title = f"pyxbroker {__version__}"
    text = BANNER.format(
        title=BOLD.format(title) if sys.stdout.isatty() else title,
        ready_ms=milliseconds_since_start(),
        storage=f"  {storage.name:<8} {storage.place}",
        broker="".join(f"  broker   {url}\n" for url in urls),
        web="".join(WEB_LINES.format(url=url) for url in webs),
        broker_url=urls[0],
        elsewhere=ELSEWHERE if is_loopback(config.advertisedAddress) else "",
        how="" if addresses.broker_url else ", tls_trust_certs_file_path=...",
    )
    print(text, flush=True)


def milliseconds_since_start(clock: Callable[[int], float] = time.clock_gettime) -> int:
    """Return the age of this process, including the start of the interpreter."""
    # Field 22 of proc(5) stat in ticks since boot, counted after the name, which may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return round((clock(time.CLOCK_BOOTTIME) - started) * 1000)
