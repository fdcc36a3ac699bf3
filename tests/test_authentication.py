"""Which settings of authentication a broker starts with, and what is never told of them."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import PACKAGE, SECRET, TOKENS, data_url, settings

from one_broker import Broker
from one_broker import run as run_broker
from pyxbroker.auth.authentication import Authentication
from pyxbroker.base.properties import ConfigError
from pyxbroker.roles.early_parts import authentication_of
from pyxbroker.roles.start import start_standalone
from pyxbroker.settings.config import SECRET as SECRET_SETTINGS
from pyxbroker.settings.config import Config
from test_admin_topics import Rest

SOURCE = Path(__file__).parent.parent / "src" / "pyxbroker"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("AuthenticationProviderSasl", "Kerberos is not supported"),
        ("AuthenticationProviderAthenz", "Athenz is not supported"),
        ("AuthenticationProviderList", "name its members instead"),
        ("AuthenticationProviderNone", "it is unknown"),
    ],
)
def test_a_provider_that_is_not_there_is_refused_by_its_name(name: str, reason: str) -> None:
    """Also beside one that is: who relies on it would be let in by less."""
    for names in (PACKAGE + name, f"{TOKENS}, {PACKAGE}{name}"):
        with pytest.raises(ConfigError, match=reason) as raised:
            Authentication(Config(**settings(authenticationProviders=names)))
        assert repr(PACKAGE + name) in str(raised.value)
    with pytest.raises(ConfigError, match="it is unknown"):
        Authentication(Config(**settings(authenticationProviders="AuthenticationProviderToken")))


def test_a_broker_that_would_let_nobody_in_does_not_start() -> None:
    with pytest.raises(ConfigError, match="no client could log in"):
        Authentication(Config(authenticationEnabled=True))
    Authentication(Config(authenticationEnabled=True, anonymousUserRole="all"))


def test_off_is_off() -> None:
    assert authentication_of(Config(**settings(authenticationEnabled=False))) is None
    assert Config().authenticationEnabled is False


def test_settings_that_cannot_be_used_keep_a_broker_from_making_anything(tmp_path: Path) -> None:
    async def main() -> None:
        config = Config(**settings(tokenSecretKey=""), brokerServicePort=0, webServicePort=0)
        with pytest.raises(ConfigError):
            await start_standalone(config, tmp_path / "data")

    asyncio.run(main())
    assert not (tmp_path / "data").exists()


# --- secrets ----------------------------------------------------------------------------------


def test_no_answer_has_a_secret(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {key: f"s3cret-{key}" for key in SECRET_SETTINGS}

    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        for path in ("", "/values", "/runtime"):
            status, told = await rest("GET", f"/admin/v2/brokers/configuration{path}")
            assert status == 200 and "s3cret" not in json.dumps(told)
        assert "s3cret" not in repr(broker.config.changed()) + repr(broker.config)

    run_broker(tmp_path, scenario, **secrets)


def test_what_names_a_key_or_a_password_is_secret() -> None:
    named = {
        key
        for key in vars(Config())
        if re.search("assword|Secret|basicAuth|AuthenticationParameters", key)
    }
    found = {key for key in named if not key.endswith("Path")}  # a file has the password
    assert found == SECRET_SETTINGS


def test_a_secret_that_is_wrong_is_not_in_the_sentence_that_refuses_it() -> None:
    for text in ("s3cret!", data_url(b"s3cret"), "data:s3cret", "/s3cret", "czNjcmV0"):
        with pytest.raises(ConfigError) as raised:
            Authentication(Config(**settings(tokenSecretKey=text)))
        assert not re.search("s3cret|czNjcmV0", str(raised.value))
    provider = Authentication(Config(**settings()))
    assert data_url(SECRET) not in repr(provider)


COMPARES = ("compare_digest", "checkpw")
SECRETS = re.compile(
    r"secret|password|passwd|credential|shown|hashed|digest(?!_size)|signature", re.IGNORECASE
)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _comparisons(path: Path) -> list[str]:
    """Where a module compares what may be a secret by itself."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute | ast.Name) and _name(node) in COMPARES:
            found.append(f"{path.name}:{node.lineno}: {_name(node)}")
        if isinstance(node, ast.Compare) and "auth" in path.parts:
            sides = [node.left, *node.comparators]
            is_equality = any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
            if is_equality and any(SECRETS.search(_name(each)) for each in sides):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_one_function_compares_secrets_and_takes_as_long_whatever_is_wrong() -> None:
    # rglob() does not follow the symbolic link to spark/.
    paths = [*SOURCE.rglob("*.py"), *(SOURCE / "spark").rglob("*.py")]
    found = {path.name: _comparisons(path) for path in paths}
    others = [each for name, lines in found.items() if name != "secrets.py" for each in lines]
    assert len(found["secrets.py"]) == 1 and others == []


def test_a_comparison_of_secrets_is_found(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "x.py"
    path.parent.mkdir()
    path.write_text(
        "a == self.password\nhmac.compare_digest(a, b)\nx.secret != 1\nlen(shown) > 2\n"
    )
    assert len(_comparisons(path)) == 3
