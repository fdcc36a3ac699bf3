"""`pyxbroker admin`: its tables, options, configuration and output."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compat_tests import pulsaradmin_names

from command_line import imported_by, run
from pyxbroker.admin import endpoints
from pyxbroker.cli import admin, contexts, login_options
from pyxbroker.cli.admin import completion, messages, output, rows, running
from pyxbroker.client.http import HttpAnswer
from test_client_admin import Reply, Web, reply

# Rows whose resource the broker answers with "not built".
NOT_BUILT = {"migrate", "shutdown", "shadowTopics"}


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for contexts.toml, which the test may fill."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(contexts.CLIENT_CONF, raising=False)
    (tmp_path / "pyxbroker").mkdir()
    return tmp_path / "pyxbroker"


def commands() -> Iterator[tuple[str, str, rows.Command]]:
    for group in admin.GROUPS:
        for name, command in running.table_of(group).items():
            yield group, name, command


# --- the tables -----------------------------------------------------------------------------------


def test_each_path_of_the_tables_is_an_endpoint_of_the_broker() -> None:
    known = {
        (endpoint.method, _shape(endpoint.path))
        for files in endpoints.RESOURCES.values()
        for file in files
        for endpoint in endpoints.load(file)
    }
    missing = [
        (group, name, command.path)
        for group, name, command in commands()
        for path in _paths(command)
        if (command.method, _shape(path)) not in known
    ]
    assert not [each for each in missing if not NOT_BUILT & set(each[2].split("/"))]


def _paths(command: rows.Command) -> Iterator[str]:
    """The paths of a row, without and with the parts that options add."""
    if command.run is not None:
        return
    path = command.path.replace("{rate}", "dispatchRate")
    optional = re.findall(r"\{/\w+\}", path)
    with_all = path
    for each in optional:
        with_all = with_all.replace(each, f"/{{{each[2:-1]}}}")
        path = path.replace(each, "")
    needed = {each.to for each in command.options if each.is_required}
    if not needed & set(optional) and "/split" not in path:
        yield path
    yield with_all.replace("{bundle}/{type}", "{bundle}")


def _shape(path: str) -> str:
    """A path without the names of its parameters."""
    if "{domain}" not in path and "{tenant}" not in path:
        has_domain = not path.startswith(("/admin/v2/schemas", "/admin/v3/transactions"))
        topic = "{domain}/{tenant}/{namespace}/{local}"
        path = path.replace("{topic}", topic if has_domain else topic.removeprefix("{domain}/"))
        if "{local}" not in path:
            path = path.replace("{namespace}", "{tenant}/{namespace}")
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_options_have_the_names_of_pulsar_admin() -> None:
    assert list(pulsaradmin_names.missing_options()) == [
        ("clusters", "delete", "--all -a"),
    ]


def test_places_of_values_exist() -> None:
    for group, name, command in commands():
        for option in command.options:
            if option.to.startswith("{") and command.run is None:
                assert option.to in command.path, (group, name, option.names)
        dests = [option.dest for option in command.options]
        assert len(dests) == len(set(dests)), (group, name)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [
        (rows.seconds, "90", 90),
        (rows.seconds, "10m", 600),
        (rows.seconds, "2W", 1_209_600),
        (rows.milliseconds, "2s", 2_000),
        (rows.minutes, "7d", 10_080),
        (rows.minutes, "-1", -1),
        (rows.size, "4096", 4_096),
        (rows.size, "10k", 10_240),
        (rows.megabytes, "10G", 10_240),
        (rows.megabytes, "-1", -1),
        (rows.choice("Shared", "Key_Shared"), "key_shared", "Key_Shared"),
        (rows.topic, "t/x".replace("/", " "), "persistent/public/default/t%20x"),
        (rows.topic, "non-persistent://a/b/c", "non-persistent/a/b/c"),
        (rows.namespace, "a/b", "a/b"),
        (rows.pairs, "a=b,c=", {"a": "b", "c": ""}),
        (rows.pair, "a=b,c", {"a": "b,c"}),
    ],
)
def test_values_have_the_units_of_pulsar_admin(convert: Any, text: str, value: Any) -> None:
    assert convert(text) == value


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (rows.seconds, "soon"),
        (rows.seconds, "3x"),
        (rows.size, "1.5G"),
        (rows.size, ""),
        (rows.choice("a"), "b"),
        (rows.namespace, "a"),
        (rows.namespace, "a/b/c"),
        (rows.topic, "a/b"),
        (rows.bundle, "0x0"),
        (rows.pair, "a"),
        (rows.json_file, "/none-such"),
    ],
)
def test_a_wrong_value_is_refused(convert: Any, text: str) -> None:
    with pytest.raises(rows.ArgumentTypeError):
        convert(text)


# --- commands -------------------------------------------------------------------------------------


NOTHING = reply(b"")


def admin_of(*arguments: str, answer: bytes | Reply = NOTHING) -> tuple[int, Web]:
    """Run a command against a server, and return its exit status and the server."""
    web = Web(answer if callable(answer) else lambda method, target: answer)

    async def main() -> int:
        async with web:
            return await asyncio.to_thread(_status, ["--admin-url", web.url, *arguments])

    return asyncio.run(main()), web


def _status(arguments: list[str]) -> int:
    try:
        admin.command(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_command_prints_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer = reply(b'["a", "b"]')
    for arguments, text in (
        (("tenants", "list"), "a\nb\n"),
        (("--output", "json", "tenants", "list"), '[\n  "a",\n  "b"\n]\n'),
        (("tenants", "list", "--output", "table"), "a\nb\n"),
    ):
        status, web = admin_of(*arguments, answer=answer)
        assert (status, capsys.readouterr().out) == (0, text)
        assert web.requests[0][0].startswith("GET /admin/v2/tenants ")


def test_a_refusal_is_a_sentence_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    refused = reply(b'{"reason": "Tenant already exist"}', "409 Conflict")
    status, _ = admin_of("tenants", "get", "x", answer=refused)
    assert (status, capsys.readouterr().err) == (1, "pyxbroker: Tenant already exist.\n")
    loud = reply(b'{"reason": "Transaction coordinator with id 9 not found!"}', "404 Not Found")
    admin_of("tenants", "get", "x", answer=loud)
    shown = capsys.readouterr().err
    assert shown == "pyxbroker: Transaction coordinator with id 9 not found!\n"
    assert _status(["--admin-url", "http://127.0.0.1:1", "tenants", "list"]) == 1
    assert "No broker answers at http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "first\nsecond\n"),
        (("-ssm",), "first\nmarker\nsecond\n"),
        (("-til", "READ_UNCOMMITTED"), "first\naborted\nsecond\nopen\n"),
        (("-til", "READ_UNCOMMITTED", "-ssm", "-n", "3"), "first\naborted\nmarker\n"),
    ],
)
def test_entries_of_transactions_are_peeked_at_on_request(
    options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        reply(b"first"),
        reply(b"aborted", "200 OK", "X-Pulsar-txn-aborted: true"),
        reply(b"marker", "200 OK", "X-Pulsar-marker-type: 22"),
        reply(b"second", "200 OK", "X-Pulsar-txn-uncommitted: false"),
        reply(b"open", "200 OK", "X-Pulsar-txn-uncommitted: true"),
    ]

    def answer(method: str, target: str) -> bytes:
        index = int(target.rpartition("/")[2]) - 1
        return entries[index] if index < len(entries) else reply(b"", "404 Not Found")

    arguments = ["topics", "peek-messages", "t", "-s", "s", "-n", "9", *options]
    assert admin_of(*arguments, answer=answer)[0] == 0
    shown = capsys.readouterr().out
    found = re.findall(r"\|(first|aborted|marker|second|open) *\|", shown)
    assert "".join(f"{each}\n" for each in found) == text


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["tenant", "list"], "did you mean tenants?"),
        (["tenants", "lst"], "did you mean list?"),
        (["namespaces", "set-retention", "a/b", "--tim", "1d"], "required: -t/--time"),
        (["tenants", "list", "--outptu", "json"], "did you mean --output?"),
        (["topics", "stats", "a/b"], "a/b"),
        (
            ["transactions", "transaction-buffer-stats", "-t", "non-persistent://a/b/c"],
            "has no transactions",
        ),
        (["namespaces", "set-deduplication", "a/b"], "-e/--enable -d/--disable is required"),
        (["namespaces", "unload", "a/b", "-d", "x"], "--destinationBroker needs --bundle."),
        (["--admin-url", "pulsar://x:1", "tenants", "list"], "expected http://HOST:PORT"),
        (["--yes"], "required: GROUP"),
        (["--request-timeout", "-5", "tenants", "list"], "'-5' is not a whole number of seconds."),
        (["tenants", "list", "--token", "x"], "--token stands before the command: pyxbroker admin"),
        (["tenants", "--token", "x", "list"], "--token stands before the command: pyxbroker admin"),
    ],
)
def test_wrong_usage_has_status_2_and_names_what_was_meant(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status(arguments) == 2
    assert hint in capsys.readouterr().err


def test_an_option_that_is_repeated_adds_to_its_value() -> None:
    command = running.table_of("topics")["update-properties"]
    values = running.parse("topics", "x", command, ["t", "-p", "a=1", "-p", "b=2"])
    assert running.path_and_body(command, values) == (
        "/admin/v2/persistent/public/default/t/properties",
        {"a": "1", "b": "2"},
    )


def test_data_is_destroyed_only_after_a_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal the command refuses and names --yes."""
    for line in ("topics delete t", "namespaces delete a/b --force", "tenants delete a -f"):
        status, web = admin_of(*line.split())
        assert (status, web.requests) == (2, [])
        assert "--yes" in capsys.readouterr().err
        status, web = admin_of(*line.split(), "--yes")
        assert (status, len(web.requests)) == (0, 1)
    assert admin_of("namespaces", "clear-backlog", "a/b", "-force")[0] == 0
    assert admin_of("namespaces", "delete", "a/b")[0] == 0
    for answer, wanted in (("y\n", (0, 1)), ("\n", (1, 0))):
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", terminal)
        status, web = admin_of("topics", "truncate", "t")
        assert (status, len(web.requests)) == wanted


# --- configuration --------------------------------------------------------------------------------

CONTEXTS = """
current = "b"
[contexts.a]
admin-url = "http://a:1"
token = "of-a"
[contexts.b]
admin-url = "http://b:1"
tls-allow-insecure = true
"""


def completed(*arguments: str) -> Any:
    options = admin.admin_parser().parse([*arguments, "tenants", "list"])
    login_options.complete(options)
    return options


def test_options_come_before_contexts_and_a_named_context_before_client_conf(
    no_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed().admin_url == "http://localhost:8080"
    (no_configuration / "contexts.toml").write_text(CONTEXTS)
    found = completed()
    assert (found.admin_url, found.token, found.tls_allow_insecure) == ("http://b:1", None, True)
    assert completed("--admin-url", "http://c:1").admin_url == "http://c:1"

    conf = no_configuration / "client.conf"
    conf.write_text(
        "# webServiceUrl=http://no:1\nwebServiceUrl = http://conf:1\n"
        "authPlugin=x.AuthenticationBasic\n"
        "authParams=me:secret=1\ntlsEnableHostnameVerification=false\nauthSomething=\n"
    )
    monkeypatch.setenv(contexts.CLIENT_CONF, str(conf))
    found = completed()
    assert (found.admin_url, found.auth_params, found.tls_enable_hostname_verification) == (
        "http://conf:1",
        "me:secret=1",
        False,
    )
    found = completed("--context", "a")
    assert (found.admin_url, found.token, found.auth_plugin) == ("http://a:1", "of-a", None)
    found = completed("--token", "mine")
    assert (found.token, found.auth_plugin) == ("mine", None)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("current = 'producton'\n[contexts.production]\n", "did you mean production?"),
        ("current = 'a'\n[contexts.a]\nadmin_url = 'x'\n", "did you mean admin-url?"),
        ("current = 'a'\n[contexts.a]\ntoken = 1\n", "token has to be a string"),
        ("current =", "is not TOML"),
        ("current = 'a'\ncontexts = 1\n", "No such context 'a'"),
        ("current = 'a'\n[contexts]\na = 1\n", "has to be a table"),
        (
            "current = 'a'\n[contexts.a]\nadmin-url = 'b:1'\n",
            "context a: admin-url is 'b:1'; expected http:// or https://HOST:PORT.",
        ),
    ],
)
def test_a_wrong_contexts_file_is_described(
    text: str, hint: str, no_configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (no_configuration / "contexts.toml").write_text(text)
    assert _status(["tenants", "list"]) == 1
    assert hint in capsys.readouterr().err


# --- output ---------------------------------------------------------------------------------------


def test_text_is_that_of_pulsar_admin() -> None:
    value = {"a": [1, {"b": True}], "c": {}, "d": [], "e": "x", "f": None}
    assert output.text_of(value) == (
        '{\n  "a" : [ 1, {\n    "b" : true\n  } ],\n  "c" : { },\n  "d" : [ ],\n  "e" : "x",\n'
        '  "f" : null\n}'
    )
    assert output.text_of(["x", 1, None]) == "x\n1\nnull"
    assert output.pairs_of({"r": ["a", "b"], "x": True}) == "r    [a, b]\nx    true"
    assert output.text_of("a\x1b[31m") == '"a\\u001b[31m"'


def test_a_table_has_a_row_for_each_object() -> None:
    assert output.table_of([{"a": 1, "b": "xyz"}, {"b": [2]}]) == "a  b\n1  xyz\n   [2]"
    assert output.table_of({"long": 1, "x": None}) == "long  1\nx"
    assert output.table_of([]) == ""
    assert output.table_of({"a": ["x" * 100]}) == f'a  ["{"x" * 75}...'


def test_messages_are_printed_with_a_dump() -> None:
    headers = {"x-pulsar-message-id": "3:4", "x-pulsar-property": '{"k":"v"}'}
    found = messages.messages_of(HttpAnswer("", 200, "", headers, b"hello\n"))
    text = messages.messages_text(found)
    assert text.splitlines()[:5] == [
        *("Message ID: 3:4", "Publish time: 0", "Event time: 0", "Properties:", "k    v"),
    ]
    assert f"|00000000| 68 65 6c 6c 6f 0a{' ' * 31}|hello.          |" in text


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ad"], ["admin"]),
        (["admin", "tena"], ["tenants"]),
        (["admin", "--ver"], []),
        (["admin", "--conte"], ["--context"]),
        (["admin", "--admin-url", "x", "tenants", "de"], ["delete"]),
        (["admin", "--admin-url", ""], []),
        (["admin", "--output=json", "topics", "unsub"], ["unsubscribe"]),
        (["admin", "tenants", "delete", "--f"], ["--force"]),
        (["admin", "completion", "z"], ["zsh"]),
        (["why", "x"], []),
    ],
)
def test_names_are_completed(words: list[str], names: list[str]) -> None:
    assert completion.names_for(words) == names


def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    script = run("admin", "completion", "bash").stdout
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pyxbroker").write_text('#!/bin/sh\necho "$*" >&2; echo tenants\n')
    (tmp_path / "bin" / "pyxbroker").chmod(0o755)
    line = f"{script}\nPATH={tmp_path}/bin:$PATH COMP_WORDS=(pyxbroker admin te) COMP_CWORD=2\n"
    shell = subprocess.run(
        ["bash", "-c", f'{line}_pyxbroker; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout == "tenants\n"
    assert run("admin", "completion", "tcsh").returncode == 2


# --- start ----------------------------------------------------------------------------------------


def test_a_command_imports_little() -> None:
    """Neither a broker's parts nor what only other logins and answers need."""
    loaded = imported_by("admin", "tenants", "--help")
    heavy = ("uvloop", "google.protobuf", "pyxbroker.broker", "pyxbroker.client.oauth2")
    assert [each for each in (*heavy, "urllib.request", "difflib") if each in loaded] == []


# --- the page -------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "admin.md"


def test_the_page_has_the_coverage_of_pulsar_admin() -> None:
    assert "\n".join(pulsaradmin_names.coverage()) in PAGE.read_text()
