"""`pyxbroker why`: how it asks, and what it prints."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pyxbroker.cli import login_options, why
from pyxbroker.cli.broker_requests import failure
from pyxbroker.client.errors import (
    AnswerTimeout,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    HttpRefused,
    ProtocolFault,
    TlsFailed,
    UntrustedCertificate,
)
from test_client_admin import Web, reply

ANSWER = {
    "topic": "persistent://public/default/t",
    "owner": "here:8080",
    "reason": "no_producer",
    "sentence": "No producer is connected to the topic.",
    "evidence": {"names": ["a", "b\n"], "backlog": 5, "lastRefusal": None},
    "subscriptions": [{"subscription": "s", "reason": "moving", "sentence": "Nothing stops it."}],
}


def ask(web_reply: bytes, *arguments: str) -> tuple[Any, Web]:
    """The answer of a server with one reply, and the server."""

    async def main() -> tuple[Any, Web]:
        async with Web(lambda method, target: web_reply) as web:
            options = why._parser().parse([*arguments, "--admin-url", web.url])
            login_options.complete(options)
            path = why.topic_path(options.topic, why._resource(options.subscription))
            return await why._ask(options, path), web

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["t"], "/admin/v2/persistent/public/default/t/why"),
        (
            ["non-persistent://a/b/c", "s/1"],
            "/admin/v2/non-persistent/a/b/c/subscription/s%2F1/why",
        ),
    ],
)
def test_the_path_has_the_topic_and_the_subscription(arguments: list[str], path: str) -> None:
    answer, web = ask(reply(json.dumps(ANSWER).encode()), *arguments)
    assert answer == ANSWER
    [(line, headers, _)] = web.requests
    assert path in line
    assert "authorization" not in {name.lower() for name in headers}


@pytest.mark.parametrize(
    ("arguments", "header"),
    [
        (["--token", "abc"], "Bearer abc"),
        (["--auth-plugin", "basic", "--auth-params", "me:secret"], "Basic bWU6c2VjcmV0"),
    ],
)
def test_credentials_are_sent(arguments: list[str], header: str) -> None:
    _, web = ask(reply(json.dumps(ANSWER).encode()), "t", *arguments)
    [(_, headers, _)] = web.requests
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == header


def test_an_unknown_kind_of_login_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ask(reply(b"{}"), "t", "--auth-plugin", "none-such")
    assert "--auth-plugin is 'none-such'; expected token," in capsys.readouterr().err


def test_the_text_has_the_sentence_first_and_each_value_in_a_line_of_its_own() -> None:
    lines = list(why._lines(ANSWER))
    assert lines[0] == ANSWER["sentence"]
    assert [line.split()[0] for line in lines[2:-3]] == [
        *("reason", "topic", "owner", "names", '"b\\n"', "backlog", "lastRefusal"),
    ]
    assert lines[-3:] == ["", "Subscriptions:", "  s: moving: Nothing stops it."]


def test_a_server_that_does_not_know_the_question_is_named() -> None:
    found = reply(b'{"reason": "HTTP 404 Not Found"}', "404 Not Found")
    with pytest.raises(HttpRefused) as refused:
        ask(found, "t")
    assert "is not a pyxbroker" in why._refusal("http://b:1", refused.value)
    missing = HttpRefused("http://b:1/x", 404, "Topic t does not exist.")
    assert why._refusal("http://b:1", missing) == "Topic t does not exist."
    with pytest.raises(ConnectionFailed):
        ask(b"nonsense\r\n\r\n", "t")


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "use --token"), (403, "administrator of its tenant"), (503, "No."), (500, "500: No.")],
)
def test_a_refusal_says_what_to_do(status: int, hint: str) -> None:
    refused = why._refusal("http://b:1", HttpRefused("http://b:1/x", status, "No."))
    assert hint in refused and "No." in refused


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ConnectFailed("http://b:1", "connection refused"), "answers at http://b:1: connection"),
        (ConnectFailed("http://c:1", "timed out"), "http://c:1, to which http://b:1 redirects:"),
        (AnswerTimeout("http://b:1"), "http://b:1 accepts connections, and has not answered"),
        (TlsFailed("https://b:1", "wrong version"), "use http:// for a port without TLS"),
        (UntrustedCertificate("https://b:1", "self-signed"), "--tls-trust-cert-path"),
        (ProtocolFault("http://b:1/x", "not HTTP"), "--admin-url needs the web port of a broker"),
    ],
)
def test_a_failed_connection_says_what_to_do(error: ClientError, hint: str) -> None:
    assert hint in failure("http://b:1", error)


@pytest.mark.parametrize(
    "url", ["", "b:8080", "pulsar://b:6650", "http://", "http://b:x", "http://b/admin/"]
)
def test_a_wrong_url_is_refused_before_asking(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        why.command(["t", "--admin-url", url])
    assert ended.value.code == 2
    assert f"--admin-url is {url!r}; expected " in capsys.readouterr().err
