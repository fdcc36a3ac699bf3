"""The audit log: changes, refusals and failed logins, each a line of JSON without a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import SECRET, settings, token

from one_broker import TOPIC, Broker, run
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.auth.audit import Audit
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.principal import Principal
from pyxbroker.base import log, log_limits
from pyxbroker.base.audit_file import write_audit_to
from pyxbroker.base.properties import ConfigError
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config
from pyxbroker.web.request import Body
from test_logins import connect, keep_out, let_in

BAD = token("me", SECRET[::-1])
ON: dict[str, Any] = settings(authorizationEnabled=True, superUserRoles="root", proxyRoles="proxy")
NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the audit log's handler writes."""
    logger, stream = logging.getLogger(log.AUDIT), io.StringIO()
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [log.AuditHandler(stream)], False
    logger.setLevel(logging.INFO)
    yield stream
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def told(lines: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(each) for each in lines.getvalue().splitlines()]
    for each in found:
        assert each.pop("time").endswith("Z") and each.pop("logger") == "pyxbroker.audit"
    return found


async def ask(
    broker: Broker, role: str, method: str, path: str, body: bytes = b"", **more: str
) -> int:
    path, _, query = path.partition("?")
    stream = Body(len(body), lambda: None)
    if body:
        stream.feed(body)
    stream.end()
    headers = {"authorization": f"Bearer {token(role)}", "content-type": "application/json", **more}
    request = Request(method, path, query, headers, stream, address="10.0.0.1")
    service: Any = broker.service
    return (await Application(service, lambda: service).answer(request)).status


def serve(directory: Path, scenario: Any, **more: Any) -> None:
    async def with_authentication(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        record = {"auth_policies": {"namespace_auth": {"me": ["consume"]}}}
        await broker.node.store.put(
            paths.namespace_policies("public/default"), json.dumps(record).encode()
        )
        await broker.node.store.put(paths.tenant("public"), b'{"adminRoles":["admin"]}')
        await scenario(broker)

    run(directory, with_authentication, **{**ON, **more})


def test_each_change_by_rest_is_told_with_who_what_and_what_became_of_it(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        secret = b'{"retentionTimeInMinutes":5,"retentionSizeInMB":5}'
        assert await ask(broker, "admin", "GET", f"{NAMESPACE}/retention") == 204
        assert await ask(broker, "admin", "POST", f"{NAMESPACE}/retention", secret) == 204
        assert await ask(broker, "admin", "DELETE", "/admin/v2/nothing") == 404
        path = "/admin/v2/persistent/public/default/t"
        assert await ask(broker, "admin", "DELETE", f"{path}?force=true&token=s3cret") == 404
        about = {"principal": "admin", "address": "10.0.0.1"}
        assert told(lines) == [
            {
                "event": "change",
                **about,
                "operation": "POST /admin/v2/namespaces/{tenant}/{namespace}/retention",
                "target": f"{NAMESPACE}/retention",
                "outcome": 204,
            },
            {
                "event": "change",
                **about,
                "operation": "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}",
                "target": path,
                "outcome": 404,
                "arguments": {"force": "true"},
            },
        ]
        assert "s3cret" not in lines.getvalue() and "retentionTime" not in lines.getvalue()

    serve(tmp_path, scenario)


def test_a_get_that_makes_something_is_told_and_no_other_one(
    tmp_path: Path, lines: io.StringIO
) -> None:
    path = "/admin/v2/persistent/public/default"
    peek, partitions = f"{path}/t/subscription/s/position/1", f"{path}/made/partitions"

    async def scenario(broker: Broker) -> None:
        await broker.publish(b"0")
        for _ in range(2):
            assert await ask(broker, "root", "GET", peek) == 200
        assert await ask(broker, "root", "GET", f"{path}/t/subscription/s/position/2") == 404
        for _ in range(2):
            assert (
                await ask(broker, "root", "GET", f"{partitions}?checkAllowAutoCreation=true") == 200
            )
        assert await ask(broker, "root", "GET", f"{path}/none/partitions") == 404
        assert [(each["target"], each["outcome"]) for each in told(lines)] == [
            (peek, 200),
            (partitions, 200),
        ]
        assert told(lines)[1]["arguments"] == {"checkAllowAutoCreation": "true"}

    more = {"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": 2}
    serve(tmp_path, scenario, **more)


@pytest.mark.parametrize("authorization", [True, False])
def test_for_whom_somebody_asks_is_the_word_of_a_proxy_alone(
    tmp_path: Path, lines: io.StringIO, authorization: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        behind = {"x-original-principal": "root"}
        await ask(broker, "proxy", "DELETE", f"{NAMESPACE}/retention", **behind)
        await ask(broker, "me", "DELETE", f"{NAMESPACE}/retention", **behind)
        found = [
            {name: each for name, each in line.items() if name.lower().endswith("principal")}
            for line in told(lines)
        ]
        assert found == [
            {"principal": "proxy", "originalPrincipal": "root"},
            {"principal": "me", "claimedPrincipal": "root"},
        ]

    serve(tmp_path, scenario, authorizationEnabled=authorization)


def test_refusals_are_told_on_both_ports(tmp_path: Path, lines: io.StringIO) -> None:
    async def scenario(broker: Broker) -> None:
        assert await ask(broker, "me", "POST", f"{NAMESPACE}/retention", b"{}") == 403
        client = await let_in(broker, connect(token("me")))
        client.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        await client.receive("error")
        by_rest, by_protocol = told(lines)
        assert (by_rest["event"], by_rest["principal"], by_rest["outcome"]) == (
            "refused",
            "me",
            403,
        )
        assert by_rest["reason"].startswith("Unauthorized to validateNamespacePolicyOperation")
        assert by_protocol == {
            "event": "refused",
            "principal": "me",
            "address": "",
            "operation": "producer",
            "target": TOPIC,
            "outcome": "denied",
            "reason": "Unauthorized to validateTopicOperation for operation [PRODUCE] on topic"
            f" [{TOPIC}]",
        }

    serve(tmp_path, scenario)


def test_failed_logins_are_told_and_what_they_showed_is_not(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        await keep_out(broker, connect(BAD))
        await keep_out(broker, connect(token("me", exp=-5)))
        first, second = told(lines)
        assert first == {
            "event": "login failed",
            "address": "",
            "operation": "login by CONNECT",
            "method": "token",
            "reason": "The token cannot be used: InvalidSignatureError.",
        }
        assert second["reason"] == "The token has expired."
        assert BAD not in lines.getvalue()

    serve(tmp_path, scenario)


def test_a_bad_token_that_is_served_as_anonymous_is_told_all_the_same(
    tmp_path: Path, lines: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        body = Body(0, lambda: None)
        body.end()
        headers = {"authorization": f"Bearer {BAD}"}
        request = Request("GET", "/admin/v2/clusters", "", headers, body, address="10.0.0.1")
        service: Any = broker.service
        assert (await Application(service, lambda: service).answer(request)).status == 200
        assert request.principal == Principal("nobody")
        assert told(lines) == [
            {
                "event": "login failed",
                "address": "10.0.0.1",
                "operation": "login by HTTP",
                "method": "",
                "reason": "The token cannot be used: InvalidSignatureError.",
            }
        ]
        assert BAD not in lines.getvalue() + caplog.text

    serve(tmp_path, scenario, anonymousUserRole="nobody")
    assert "authentication failed" in caplog.text


def test_what_is_done_to_a_subscription_by_the_protocol_is_told(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("root")))
        await broker.topic()
        subscribe = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=1
        )
        await client.request(subscribe, "success")
        await client.request(pb.CommandUnsubscribe(consumer_id=1, request_id=2), "success")
        assert told(lines) == [
            {
                "event": "change",
                "principal": "root",
                "address": "",
                "operation": "UNSUBSCRIBE",
                "target": f"{TOPIC} s",
                "outcome": "done",
            }
        ]

    serve(tmp_path, scenario)


def test_a_stranger_cannot_flood_it_and_changes_are_all_there(lines: io.StringIO) -> None:
    audit = Audit(Config(auditLog="true"))
    for number in range(1000):
        audit.login_failed(f"10.0.0.{number % 4}", "CONNECT", "token", "The token has expired.")
        audit.refused(Principal("me"), "10.0.0.1", "producer", TOPIC, "denied", "no")
        audit.changed(Principal("admin"), "10.0.0.9", "POST /x", f"/{number}", 204)
    log_limits_max = 2 * log_limits._LINES_MAX
    found = told(lines)
    assert sum(each["event"] != "change" for each in found) <= log_limits_max
    assert [each["target"] for each in found if each["event"] == "change"] == [
        f"/{number}" for number in range(1000)
    ]
    lines.truncate(0)
    lines.seek(0)
    log.write_repeated(is_end=True)
    assert sum(each["repeated"] for each in told(lines)) >= 1900


def test_however_much_is_changed_failed_logins_are_told(lines: io.StringIO) -> None:
    audit = Audit(Config(auditLog="true"))
    audit.login_failed("10.0.0.1", "CONNECT", "token", "The token has expired.")
    for number in range(2000):
        audit.changed(Principal("admin"), "10.0.0.9", "POST /x", f"/{number}", 204)
    assert len(lines.getvalue()) > log_limits.BYTES_PER_SECOND_MAX
    audit.login_failed("10.0.0.2", "CONNECT", "token", "The token has expired.")
    failed = [each["address"] for each in told(lines) if each["event"] == "login failed"]
    assert failed == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("wanted", "authentication", "expected"),
    [
        ("withAuthentication", True, True),
        ("withAuthentication", False, False),
        ("true", False, True),
        ("false", True, False),
    ],
)
def test_it_is_on_with_authentication_unless_somebody_says_otherwise(
    lines: io.StringIO, wanted: str, authentication: bool, expected: bool
) -> None:
    audit = Audit(Config(auditLog=wanted, authenticationEnabled=authentication))
    audit.changed(Principal(), "10.0.0.1", "POST /x", "/x", 204)
    assert bool(told(lines)) is expected


def test_a_line_is_one_line_whatever_is_in_it(lines: io.StringIO) -> None:
    audit = Audit(Config(auditLog="true"))
    audit.changed(Principal('a"\n\x1b[0m\u2028'), "x", "POST /x", "t" * 100_000, 204)
    text = lines.getvalue()
    assert text.isascii() and text.count("\n") == 1 and "\x1b" not in text
    assert len(text) < 4096


def test_a_process_writes_it_whatever_the_level_of_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, ours, audit = (logging.getLogger(each) for each in ("", log.ROOT, log.AUDIT))
    kept = [(each, each.handlers[:], each.level, each.propagate) for each in (root, ours, audit)]
    try:
        log.configure("ERROR")
        Audit(Config(auditLog="true")).changed(Principal("me"), "x", "POST /x", "/x", 204)
    finally:
        for logger, handlers, level, propagate in kept:
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
    assert json.loads(capsys.readouterr().err)["principal"] == "me"


def test_lines_go_to_a_file_of_their_own_which_may_be_renamed(
    tmp_path: Path, lines: io.StringIO
) -> None:
    path = tmp_path / "audit.log"
    path.write_text("before\n")
    path.chmod(0o640)
    write_audit_to(path)
    audit = Audit(Config(auditLog="true"))
    audit.changed(Principal("me"), "x", "POST /x", "/1", 204)
    path.rename(tmp_path / "audit.log.1")
    audit.changed(Principal("me"), "x", "POST /x", "/2", 204)
    audit.login_failed("10.0.0.1", "CONNECT", "token", "The token has expired.")
    path.unlink()
    audit.changed(Principal("me"), "x", "POST /x", "/3", 204)
    assert (tmp_path / "audit.log.1").read_text().startswith("before\n{")
    assert [json.loads(each)["target"] for each in path.read_text().splitlines()] == ["/3"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert lines.getvalue() == ""


def test_a_file_of_the_audit_log_that_cannot_be_opened_again_costs_no_line(
    tmp_path: Path, lines: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "audit.log"
    path.parent.mkdir()
    write_audit_to(path)
    kept = path.open()
    path.unlink()
    path.parent.rmdir()
    Audit(Config(auditLog="true")).changed(Principal("me"), "x", "POST /x", "/1", 204)
    assert json.loads(kept.read())["target"] == "/1"
    assert str(path) in capsys.readouterr().err
    kept.close()
    with pytest.raises(ConfigError, match=f"auditLogFile: {path} cannot be written: No such file"):
        write_audit_to(path)
