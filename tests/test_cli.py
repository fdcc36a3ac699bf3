"""The command line, as a person and a supervisor see it: real processes, free ports."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from harness import wire
from harness.brokers import free_ports
from harness.raw import RawConnection

from certificates import write_files
from command_line import (
    ANY_PORTS,
    COMMAND,
    TIMEOUT_S,
    complaints,
    error_line,
    imported_by,
    read_banner,
    run,
    standalone,
)
from pyxbroker import __version__
from pyxbroker.cli.data_directory import DataDirectory, DataDirectoryError
from pyxbroker.cli.serving import START_LOG_INTERVAL_S
from pyxbroker.cli.version import commit_of

# What must not be imported before the broker's port is served.
HEAVY = ("kazoo", "prometheus_client", "rich", "pulsar", "click", "shutil")


def test_version_is_quick_and_light() -> None:
    finished = run("version")
    assert finished.returncode == 0
    assert re.fullmatch(
        rf"pyxbroker {__version__} \((commit [0-9a-f]+(-dirty)?, )?Python 3\.[0-9.]+\)\n",
        finished.stdout,
    )
    assert run("--version").stdout == f"pyxbroker {__version__}\n"
    loaded = imported_by("version")
    heavy = [*HEAVY, "asyncio", "uvloop", "google.protobuf", "pyxbroker._native", "difflib"]
    assert [name for name in heavy if name in loaded] == []


CTRL_C_DURING_IMPORTS = """
import os, signal, sys

module, sys.argv[1] = sys.argv[1], "version"

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores SIGINT
sys.meta_path.insert(0, Interrupting())
from pyxbroker.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["pyxbroker.cli", "argparse", "pyxbroker.cli.version"])
def test_ctrl_c_during_the_imports_of_a_command_is_quiet(module: str) -> None:
    line = [sys.executable, "-c", CTRL_C_DURING_IMPORTS, module]
    ended = subprocess.run(line, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")


def test_version_names_the_commit_of_a_checkout_and_of_what_was_built_from_one(
    tmp_path: Path,
) -> None:
    package = tmp_path / "src" / "pyxbroker"
    package.mkdir(parents=True)
    assert commit_of(package) == ""
    (package / "commit.txt").write_text("0123456789ab\n")
    assert commit_of(package) == "0123456789ab"
    (tmp_path / "setup.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "setup.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Begin"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit_of(package) == head.stdout[:12]
    (tmp_path / "setup.py").write_text("changed")
    assert commit_of(package) == f"{head.stdout[:12]}-dirty"


def test_help_teaches() -> None:
    general, command = run("--help").stdout, run("standalone", "-h").stdout
    for word in ("Examples:", "standalone", "config", "version"):
        assert word in general
    for word in ("--data", "--config", "--broker-port", "--web-port", "--metadata", "Examples:"):
        assert word in command


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["standalone", "--nonsense"],
        ["standalone", "--broker-port", "x"],
        ["standalone", "--web-port", "65536"],
        ["standalone", "--set", "maxMessageSize"],
        ["standalone", "--set", "noSuchKey=1"],
    ],
)
def test_wrong_usage_is_two(arguments: list[str]) -> None:
    finished = run(*arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "Usage: " in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["standalon"], "No such command 'standalon'; did you mean standalone?"),
        (["METDATA"], "No such command 'METDATA'; did you mean metadata?"),
        (["metadata", "chek"], "No such command 'chek'; did you mean check?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["--hlp"], "No such option '--hlp'; did you mean --help?"),
        (["standalone", "--Brokerport=1"], "did you mean --broker-port?"),
        (["standalone", "--port=1"], "did you mean --web-port or --broker-port?"),
        (["metadata", "check", "--jso"], "No such option '--jso'; did you mean --json?"),
        (["config", "--xyzzy"], "No such option '--xyzzy'."),
        (["version", "-x"], "No such option '-x'."),
        (
            ["standalone", "--set", "maxmesagesize=1"],
            "; did you mean maxMessageSize?",
        ),
        (["standalone", "--set", "xyzzy=1"], "No such setting of `pyxbroker config` 'xyzzy'."),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_nearest(
    arguments: list[str], answer: str
) -> None:
    finished = run(*arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.rstrip().endswith(answer)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["standalone", "--web-port", "-1"],
            "--web-port: '-1' is not a port; expected 0 to 65535.",
        ),
        (["standalone", "--log-level", "loud"], "'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
        (["standalone", "--data"], "--data: expected one argument"),
        (["standalone", "extra"], "Unexpected argument 'extra'."),
        (["standalone", "--set", "a"], "expected KEY=VALUE with a key of `pyxbroker config"),
        (["metadata", "--data", "x", "check"], "No such option '--data'."),
        (["metadata", "backup", "a", "b"], "Unexpected argument 'b'."),
        (["client", "produce", "a"], "There is nothing to send"),
        (["client", "produce", "a", "-m", "b", "-p", "c"], "--properties has 'c'; expected NAME="),
        (["client", "produce", "a", "-m", "b", "--event-time", "c"], "'c' is not a time: expected"),
        (
            ["client", "produce", "a", "-m", "b", "-r", "nan"],
            "--rate and --batch-delay need a number",
        ),
        (["client", "read", "a", "-m", f"{1 << 63}:0"], "expected latest, earliest, LEDGER:ENTRY"),
        (["client", "read", "a", "-m", "first"], "'first'; expected latest, earliest, LEDGER:ENT"),
        (["client", "read", "a", "-stp", "0001-01-01"], "'0001-01-01' is not a time: expected"),
    ],
)
def test_a_value_that_cannot_be_is_answered_with_what_can(
    arguments: list[str], answer: str
) -> None:
    finished = run(*arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert answer in finished.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [[], ["metadata"], ["admin"]])
def test_a_command_that_is_left_out_is_answered_with_the_help(arguments: list[str]) -> None:
    finished = run(*arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == run(*arguments, "--help").stdout


def test_of_settings_that_are_given_again_the_last_wins_and_all_count(tmp_path: Path) -> None:
    pairs = ["bindAddress=127.0.0.1", "bindAddress=192.0.2.1", "journalSyncData=true"]
    options = [word for pair in pairs for word in ("--set", pair)]
    finished = run("standalone", "--data", tmp_path, *ANY_PORTS, *options, "--log-level", "debug")
    assert finished.returncode == 1
    assert "no address 192.0.2.1 (bindAddress)." in error_line(finished)


@pytest.mark.parametrize(
    ("redirection", "arguments", "status"),
    [
        (">&-", "config", 0),
        ("<&-", "admin topics delete orders", 2),
        ("<&- >&- 2>&-", "top", 2),
        ("2>&-", "client consume orders -s a -n -1", 2),
    ],
)
def test_a_command_runs_without_standard_streams(
    redirection: str, arguments: str, status: int
) -> None:
    line = f"{shlex.join(COMMAND)} {arguments} {redirection}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["config"], ["version"]])
def test_a_reader_that_has_gone_ends_a_command_without_words(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate(timeout=TIMEOUT_S)[1] == b""
    assert process.returncode == 1


def test_banner_rest_and_a_clean_stop(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        assert f"pyxbroker {__version__} is ready in " in broker.banner
        assert f"data     {tmp_path / 'data'}" in broker.banner
        assert "\x1b" not in broker.banner
        socket.create_connection(("127.0.0.1", broker.broker_port), TIMEOUT_S).close()
        url = broker.find(r"admin +(http://\S+)")
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            assert answer.read() == b'["standalone"]'
        code, out, err = broker.stop()
    assert (code, out.strip()) == (0, "")
    assert " INFO standalone event=stopping signal=SIGTERM\n" in err
    assert re.search(r"INFO standalone event=stopped ms=\d+\n$", err)


def test_sigint_stops_cleanly_too(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        assert broker.stop(signal.SIGINT)[0] == 0


def test_an_empty_web_port_serves_none(tmp_path: Path) -> None:
    for value, ports in (("0", 2), ("", 1)):
        with standalone(tmp_path / "data", "--set", f"webServicePort={value}") as broker:
            found = psutil.Process(broker.process.pid).net_connections("tcp")
            listening = {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
            assert broker.broker_port in listening
            assert len(listening) == ports
            assert broker.stop()[0] == 0


@pytest.mark.parametrize("seconds", [0, 1])
def test_who_is_silent_is_asked_unless_that_is_off(tmp_path: Path, seconds: int) -> None:
    setting = f"keepAliveIntervalSeconds={seconds}"
    with standalone(tmp_path / "data", "--set", setting) as broker:
        with socket.create_connection(("127.0.0.1", broker.broker_port), timeout=5) as client:
            client.sendall(wire.command(wire.CONNECT, {1: "test", 4: 21}))
            reader = wire.FrameReader()
            kinds: list[int] = []
            # Closed it is in its own time; nothing is what comes in the time of two intervals.
            deadline = time.monotonic() + (TIMEOUT_S if seconds else 2.5)
            while (left := deadline - time.monotonic()) > 0:
                client.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    data = client.recv(65536)
                    if not data:
                        kinds.append(-1)
                        break
                    kinds += [frame.type for frame in reader.feed(data)]
        # It is asked once, and is closed when it has not answered.
        asked = [wire.CONNECTED, wire.PING, -1]
        assert kinds == (asked if seconds else [wire.CONNECTED])


def test_payloads_message_properties_and_secrets_are_never_logged(tmp_path: Path) -> None:
    topic = "persistent://public/default/t"
    secret = wire.metadata("p", 1, 1, fields={4: wire.encode({1: "HIDDEN", 2: "HIDDEN"})})
    with standalone(tmp_path / "data", "--log-level", "DEBUG") as broker:
        with RawConnection(broker.broker_port, handshake=False) as one:
            one.connect(fields={3: b"HIDDEN", 5: "token"})
            one.producer(topic)
            assert one.subscribe(topic).type == wire.SUCCESS
            one.flow(10)
            one.write(wire.send(1, 0, secret, b"HIDDEN"))
            # Both of these are refused, which leaves a line each.
            one.write(wire.send(1, 1, secret, b"HIDDEN", break_checksum=True))
            one.write(wire.send(1, 2, b"HIDDEN", b"HIDDEN"))
            came = sorted(one.receive().type for _ in range(4))
            expected = [wire.SEND_RECEIPT, wire.SEND_ERROR, wire.SEND_ERROR, wire.MESSAGE]
            assert came == sorted(expected)
        code, out, err = broker.stop()
    assert code == 0
    assert err.count('event="a SEND was refused"') == 2
    assert "HIDDEN" not in out + err


def test_nothing_heavy_before_the_port_is_served(tmp_path: Path) -> None:
    probe = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "import pyxbroker.cli.standalone\n"
        "from pyxbroker.settings.config import Config\n"
        "from pyxbroker.roles.start import start_standalone\n"
        "async def main():\n"
        f"    config = Config(brokerServicePort=0, webServicePort=None)\n"
        f"    service = await start_standalone(config, Path({str(tmp_path)!r}))\n"
        "    print(*sys.modules)\n"
        "    await service.stop()\n"
        "asyncio.run(main())\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    loaded = finished.stdout.split()
    assert "pyxbroker._native" in loaded
    assert [name for name in (*HEAVY, "difflib") if name in loaded] == []


def test_a_bare_variable_of_security_does_not_start_an_open_broker(tmp_path: Path) -> None:
    finished = run("standalone", "--data", tmp_path, *ANY_PORTS, authenticationEnabled="true")
    assert finished.returncode == 1
    assert "PULSAR_PREFIX_authenticationEnabled" in error_line(finished)


def test_old_names_stores_and_bare_variables_are_one_warning_each(tmp_path: Path) -> None:
    conf = tmp_path / "old.conf"
    stores = ("zookeeperServers", "configurationStoreServers")
    lines = [f"{key}=127.0.0.1:1\n" for key in stores]
    conf.write_text("".join([*lines, "zooKeeperSessionTimeoutMillis=20000\n"]))
    with standalone(tmp_path / "data", "--config", str(conf), maxTenants="3") as broker:
        err = broker.stop()[2]
    older, passed_over, bare = complaints(err)
    assert "zooKeeperSessionTimeoutMillis (now metadataStoreSessionTimeoutMillis)" in older
    assert "--metadata" in passed_over and all(key in passed_over for key in stores)
    assert "PULSAR_PREFIX_" in bare and bare.endswith("variables=maxTenants")


def test_an_empty_data_directory_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [*COMMAND, "standalone", "--data", ""],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("pyxbroker: --data is empty")
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_waits_says_what_for_within_two_seconds(tmp_path: Path) -> None:
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = f"zk:127.0.0.1:{silent.getsockname()[1]}"
        ports = ("--broker-port", "0", "--web-port", "0")
        process = subprocess.Popen(
            [*COMMAND, "standalone", "--data", str(tmp_path / "data"), "--metadata", store, *ports],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
        finally:
            process.kill()
            process.communicate()
    assert f'event="the start is waiting" waits_for="the metadata store {store}"' in line
    waited = re.search(r"seconds=([\d.]+)", line)
    assert waited is not None
    # The first line comes with the first interval; a busy machine may be late with it.
    assert START_LOG_INTERVAL_S <= float(waited[1]) < 2 * START_LOG_INTERVAL_S


@pytest.mark.parametrize("number", range(5))
def test_of_fixed_ports_the_one_that_is_taken_is_named(tmp_path: Path, number: int) -> None:
    ports = free_ports(5)
    broker, web, broker_tls, web_tls, bound = map(str, ports)
    files = write_files(tmp_path / "tls")
    options = [
        *("--broker-port", broker, "--web-port", web),
        *("--set", f"brokerServicePortTls={broker_tls}", "--set", f"webServicePortTls={web_tls}"),
        *("--set", f"tlsCertificateFilePath={files.certificate}"),
        *("--set", f"tlsKeyFilePath={files.key}"),
        *("--set", f"bindAddresses=outer:pulsar://0.0.0.0:{bound}"),
        *("--set", "advertisedListeners=outer:pulsar://127.0.0.1:1"),
    ]
    setting = (
        "brokerServicePort, --broker-port",
        "webServicePort, --web-port",
        "brokerServicePortTls",
        "webServicePortTls",
        "bindAddresses",
    )[number]
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", ports[number]))
        taken.listen()
        finished = run("standalone", "--data", tmp_path / "data", *options)
    assert finished.returncode == 1
    line = error_line(finished)
    assert f"Port {ports[number]} on 0.0.0.0 ({setting}) is in use by another process" in line
    assert not any(str(each) in line for each in ports if each != ports[number])


def test_a_port_that_two_settings_have_is_named_with_both(tmp_path: Path) -> None:
    (port,) = map(str, free_ports(1))
    finished = run("standalone", "--data", tmp_path, "--broker-port", port, "--web-port", port)
    assert finished.returncode == 1
    assert (
        f"Port {port} on 0.0.0.0 (webServicePort, --web-port) is also that of brokerServicePort"
        in error_line(finished)
    )


def test_a_data_directory_in_use_names_the_process(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        finished = run("standalone", "--data", tmp_path / "data", *ANY_PORTS)
        pid = broker.process.pid
        assert broker.stop()[0] == 0
    assert finished.returncode == 1
    assert f"in use by process {pid}" in error_line(finished)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    for command in (["standalone", *ANY_PORTS], ["metadata", "check"]):
        finished = run(*command, "--data", tmp_path)
        assert finished.returncode == 1
        line = error_line(finished)
        assert f"The directory {tmp_path} is not a data directory" in line
        assert "'passwd'" in line and "--data" in line
    assert [each.name for each in tmp_path.iterdir()] == ["passwd"]


def test_what_may_be_in_a_new_data_directory(tmp_path: Path) -> None:
    for name in (".snapshot", "lost+found", "disks"):
        (tmp_path / name).mkdir()
    conf = tmp_path / "standalone.conf"
    conf.write_text(f"journalDirectories={tmp_path}/disks/journal\n")
    DataDirectory(tmp_path, [str(conf), f"{tmp_path}/disks/journal"]).close()
    (tmp_path / "pyxbroker.lock").unlink()
    with standalone(tmp_path, "--config", str(conf)) as broker:
        assert broker.stop()[0] == 0
    (tmp_path / "more").write_text("")  # it is ours by now
    (tmp_path / "pyxbroker.lock").unlink()
    DataDirectory(tmp_path).close()


def test_sighup_is_logged_and_ignored(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        broker.process.send_signal(signal.SIGHUP)
        url = broker.find(r"admin +(http://\S+)")
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
        code, _, err = broker.stop()
    assert code == 0
    assert err.count('event="SIGHUP is ignored: ') == 1


def test_the_audit_log_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    options = ["--set", "auditLog=true", "--set", f"auditLogFile={path}"]
    with standalone(tmp_path / "data", *options) as broker:
        url = broker.find(r"admin +(http://\S+)/clusters")
        request = urllib.request.Request(f"{url}/tenants/t", b"{}", method="PUT")
        request.add_header("Content-Type", "application/json")
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        err = broker.stop()[2]
    assert '"target":"/admin/v2/tenants/t"' in path.read_text()
    assert "pyxbroker.audit" not in err
    finished = run("standalone", "--data", tmp_path / "d", *ANY_PORTS, "--set", "auditLogFile=/x/y")
    assert "auditLogFile: /x/y cannot be written: No such file" in error_line(finished)


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finished = run("standalone", "--data", tmp_path / "file" / "data", *ANY_PORTS)
    assert finished.returncode == 1
    assert "cannot be used: Not a directory" in error_line(finished)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (["--set", "journalDirectories={}/file"], "{}/file cannot be used: Not a directory."),
        (["--set", "journalDirectory={}/file"], "{}/file cannot be used: Not a directory."),
        (["--set", "journalDirectories={}/file/j"], "{}/file/j cannot be used: Not a directory."),
        (["--set", "ledgerDirectories=/proc/l"], "/proc/l cannot be used: No such file"),
        (["--metadata", "embedded:/proc/m"], "the metadata in /proc/m cannot be "),
        (["--metadata", "embedded:{}/file"], "the metadata in {}/file cannot be "),
        (["--set", "journalMaxSizeMB=4"], "journalMaxSizeMB=4 is too small: "),
        (["--set", "bindAddress=192.0.2.1"], "no address 192.0.2.1 (bindAddress)."),
        (
            ["--set", "bindAddress=no such host"],
            "The host no such host (bindAddress) is not known.",
        ),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(
    tmp_path: Path, option: list[str], expected: str
) -> None:
    (tmp_path / "file").write_text("")
    options = [each.format(tmp_path) for each in option]
    finished = run("standalone", "--data", tmp_path / "data", *ANY_PORTS, *options)
    assert finished.returncode == 1
    line = error_line(finished)
    assert expected.format(tmp_path) in line
    assert line.endswith(".")


@pytest.mark.parametrize(
    "place",
    [
        "pyxbroker.lock",
        "bookie/current/VERSION",
        "bookie/ledgers/manifest",
        "bookie/journal/journal.manifest",
        "bookie/journal/0000000000000001.journal",
        "metadata/metadata.db",
    ],
)
def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    finished = run("standalone", "--data", tmp_path, *ANY_PORTS)
    assert finished.returncode == 1
    assert str(tmp_path / place) in error_line(finished)


def test_bad_settings_name_their_place(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text("# one\nmaxMessageSize=big\n")
    finished = run("standalone", "--data", tmp_path / "d", "--config", conf)
    assert finished.returncode == 1
    assert f"{conf}, line 2: maxMessageSize is 'big'" in error_line(finished)
    finished = run("standalone", "--data", tmp_path / "d", PULSAR_PREFIX_journalSyncData="maybe")
    assert "PULSAR_PREFIX_journalSyncData" in error_line(finished)
    finished = run("standalone", "--data", tmp_path / "d", "--config", tmp_path / "none")
    assert "cannot be read" in error_line(finished)
    assert not (tmp_path / "d").exists()


def test_an_unknown_metadata_url_is_one_sentence(tmp_path: Path) -> None:
    finished = run("standalone", "--data", tmp_path, *ANY_PORTS, "--metadata", "etcd:127.0.0.1")
    assert finished.returncode == 1
    assert "etcd" in error_line(finished)


def test_unknown_settings_are_named_in_one_warning(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text("functionsWorkerEnabled=true\nnumIOThreads=8\nwebSocketServiceEnabled=true\n")
    with standalone(tmp_path / "data", "--config", str(conf)) as broker:
        err = broker.stop()[2]
    warnings = complaints(err)
    assert len(warnings) == 1
    assert "functionsWorkerEnabled,webSocketServiceEnabled" in warnings[0]
    assert "numIOThreads" not in warnings[0]


def test_mistyped_settings_are_named_with_what_may_have_been_meant(tmp_path: Path) -> None:
    """What differs by a word is another setting of Pulsar; what differs by letters is a mistake."""
    conf = tmp_path / "standalone.conf"
    conf.write_text("maxMesageSize=1\nfunctionsWorkerEnabled=false\nauthenticationEnable=true\n")
    setting = {"PULSAR_PREFIX_journalsyncdata": "false"}
    with standalone(tmp_path / "data", "--config", str(conf), **setting) as broker:
        err = broker.stop()[2]
    warnings = complaints(err)
    assert len(warnings) == 1
    assert warnings[0].endswith(
        'keys="maxMesageSize (did you mean maxMessageSize?),'
        "authenticationEnable (did you mean authenticationEnabled?),"
        'journalsyncdata (did you mean journalSyncData?)"'
    )


def started_without_an_end(data: Path, *options: str) -> subprocess.Popen[str]:
    """A standalone whose stop never ends by itself."""
    program = (
        "import asyncio\n"
        "from pyxbroker.roles import standalone\n"
        "async def never(self): await asyncio.sleep(3600)\n"
        "standalone.Standalone.stop = never\n"
        "from pyxbroker.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "standalone", "--data", str(data), *ANY_PORTS]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    process = started_without_an_end(tmp_path)
    try:
        read_banner(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "event=stopping" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_stop_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    process = started_without_an_end(tmp_path, "--set", "brokerShutdownTimeoutMs=100")
    try:
        read_banner(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "brokerShutdownTimeoutMs" in err


JOURNAL_FAILS = (
    "import functools, os\n"
    "from pyxbroker import _native\n"
    "faults = _native.DiskFaults()\n"
    "faults.rule('fdatasync', '.journal', errno=5)\n"
    "_native.Storage = functools.partial(_native.Storage, faults=faults)\n"
    "from pyxbroker.cli import main\n"
    "main()\n"
)


@pytest.mark.parametrize("ends", [False, True])
def test_a_failed_journal_ends_the_process_only_when_asked(tmp_path: Path, ends: bool) -> None:
    setting = f"shutdownOnJournalFailure={str(ends).lower()}"
    command = [sys.executable, "-c", JOURNAL_FAILS]
    with standalone(tmp_path / "data", "--set", setting, command=command) as broker:
        with RawConnection(broker.broker_port) as connection:
            connection.producer("persistent://public/default/t")
            connection.send(b"m", 0)
            assert connection.receive().type != wire.SEND_RECEIPT
            if not ends:
                time.sleep(1.5)
                connection.assert_alive()
                assert broker.process.poll() is None
                broker.process.terminate()
        _, err = broker.process.communicate(timeout=TIMEOUT_S)
    assert broker.process.returncode == 1
    sentences = [line for line in err.splitlines() if line.startswith("pyxbroker: ")]
    assert len(sentences) == 1, err
    broker_data = tmp_path / "data"
    end = {
        True: " (error 5); a restart recovers what was acknowledged.",
        False: f" ({broker_data}); acknowledged messages are safe, the next start recovers them.",
    }
    assert sentences[0] == f"pyxbroker: The broker stopped: the journal failed{end[ends]}"


def test_a_lock_is_free_after_kill_nine(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        assert broker.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    with standalone(tmp_path / "data") as broker:
        assert broker.stop()[0] == 0


def test_one_process_locks_a_directory_once(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "a" / "b" / "c")
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()}"):
        DataDirectory(first.path)
    first.close()
    (first.path / "pyxbroker.lock").write_bytes(b"\xff\0garbage")
    second = DataDirectory(first.path)
    second.close()
    assert (first.path / "pyxbroker.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_lock_file_that_cannot_be_written_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(os, "pread", refuse)
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        DataDirectory(tmp_path)
    first.close()


def test_every_new_directory_is_synced_into_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    DataDirectory(tmp_path / "a" / "b").close()
    assert synced == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--cluster", "", "letters, digits and - = : . _ only"),
        ("--cluster", "a/b", "letters, digits and - = : . _ only"),
        ("--web-service-url", "broker:8080", "http://host:port"),
        ("--broker-service-url", "http://broker:6650", "pulsar://host:port"),
        ("--broker-service-url-tls", "pulsar://broker:6651", "pulsar+ssl://host:port"),
    ],
)
def test_wrong_names_and_urls_of_a_new_cluster_are_refused_before_zookeeper_is_asked(
    option: str, value: str, expected: str
) -> None:
    options = {
        "--cluster": "east",
        "--metadata-store": "zk:127.0.0.1:1",
        "--configuration-metadata-store": "zk:127.0.0.1:1",
        "--web-service-url": "http://broker:8080",
        option: value,
    }
    words = [word for pair in options.items() for word in pair]
    done = run("initialize-cluster-metadata", *words)
    assert done.returncode == 2
    assert f"{option} is {value!r}; expected {expected}." in done.stderr


def test_wrong_options_of_the_metadata_of_transactions_are_refused() -> None:
    command = "initialize-transaction-coordinator-metadata"
    place = ("--configuration-store", "zk:127.0.0.1:1")
    none = run(command, "-c", "c", *place, "--initial-num-transaction-coordinators", "0")
    name = run(command, "-c", "a/b", *place)
    store = run(command, "-c", "c", "-cs", "rocksdb:/x")
    assert "--initial-num-transaction-coordinators is 0; expected 1 or more." in none.stderr
    assert "--cluster is 'a/b'; expected letters, digits" in name.stderr
    assert "--configuration-store is 'rocksdb:/x': a broker of a cluster needs" in store.stderr
    assert [each.returncode for each in (none, name, store)] == [2, 2, 1]


def test_a_new_cluster_says_soon_that_it_waits_for_zookeeper_and_where() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = ("--metadata-store", f"zk:{address}", "--configuration-metadata-store")
    words = ["--cluster", "east", "--web-service-url", "http://b:8080", *options, f"zk:{address}"]
    began = time.monotonic()
    with subprocess.Popen(
        [*COMMAND, "initialize-cluster-metadata", *words], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"Waiting for ZooKeeper at {address}.\n"
        finally:
            process.kill()
    assert time.monotonic() - began < 5


COPY = ("ledgers", "copy", "--to", "zk:127.0.0.1:1", "--from")


def test_a_copy_names_the_option_of_its_source_and_leaves_nothing_there(tmp_path: Path) -> None:
    absent = run(*COPY, str(tmp_path / "absent"))
    assert f"The data directory {tmp_path}/absent (--from) does not exist." in absent.stderr
    unused = run(*COPY, str(tmp_path))
    assert f"The directory {tmp_path} was never used by pyxbroker standalone" in unused.stderr
    assert "--from names" in unused.stderr
    assert list(tmp_path.iterdir()) == []
    with contextlib.closing(DataDirectory(tmp_path)):
        used = run(*COPY, str(tmp_path))
    assert "choose another directory with --from." in used.stderr
    assert {each.returncode for each in (absent, unused, used)} == {1}


def test_a_copy_of_no_ledgers_at_a_time_is_refused(tmp_path: Path) -> None:
    done = run(*COPY, str(tmp_path), "--in-flight", "0")
    assert done.returncode == 2
    assert "--in-flight is 0; expected 1 or more." in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_waits_for_zookeeper_stops_cleanly_under_its_own_name(
    tmp_path: Path, number: signal.Signals
) -> None:
    options = ("--metadata", "zk:127.0.0.1:1", "--set", "clusterName=east", *ANY_PORTS)
    with subprocess.Popen(
        [*COMMAND, "broker", *options], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            assert process.stderr is not None
            # On a busy machine a line about the imports comes before it.
            assert any("ZooKeeper at 127.0.0.1:1" in line for line in process.stderr)
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    lines = [line.split(maxsplit=2)[2] for line in rest.splitlines()]
    assert lines[0] == f"broker event=stopping signal={number.name}"
    assert lines[-1].startswith("broker event=stopped ms=")
    assert list(tmp_path.iterdir()) == []
