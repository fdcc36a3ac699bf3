"""The pytest plug-in, as projects use it: pytest runs in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench.pytest_fixtures import run_tests

import pyxbroker.testing

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 240.0
pytestmark = pytest.mark.pyxbroker


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | {"TMPDIR": str(directory / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def left_in(directory: Path) -> list[Path]:
    return list((directory / "tmp").glob("pyxbroker*"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_the_tests_of_the_sample_project_pass(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    shutil.copytree(ROOT / "docs" / "samples" / "pytest", sample)
    finished = run_pytest(sample, "-n", "2")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "5 passed" in finished.stdout
    assert left_in(sample) == []


def test_tests_in_several_workers_have_namespaces_of_their_own_and_leave_nothing(
    tmp_path: Path,
) -> None:
    run = run_tests(tests=20, workers=2, directory=tmp_path)
    assert (run.processes, run.files) == ([], [])


def test_a_namespace_is_new_for_each_test_and_deleted_after_it(project: Path) -> None:
    (project / "test_names.py").write_text(
        """
import json, urllib.request
from pyxbroker.testing import factories

brief = factories.pulsar_namespace(policies={"message_ttl_in_seconds": 60})
seen = []

def get(namespace, path):
    with urllib.request.urlopen(f"{namespace.admin_url}/admin/v2/namespaces/{path}") as answer:
        return json.load(answer)

def test_first(pulsar_namespace):
    path = f"{pulsar_namespace.admin_url}/admin/v2/persistent/{pulsar_namespace}/orders"
    urllib.request.urlopen(urllib.request.Request(path, method="PUT")).close()
    assert get(pulsar_namespace, f"{pulsar_namespace}/topics") == [pulsar_namespace.topic("orders")]
    seen.append(str(pulsar_namespace))

def test_second(pulsar_namespace, brief):
    names = get(pulsar_namespace, "public")
    assert seen[0] not in names and str(pulsar_namespace) in names
    assert get(brief, f"{brief}/messageTTL") == 60
"""
    )
    finished = run_pytest(project)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert left_in(project) == []


def test_the_log_of_a_failed_test_is_reported_and_its_files_stay(project: Path) -> None:
    (project / "test_failing.py").write_text(
        "def test_fails(pulsar_namespace):\n    assert False\n\ndef test_passes(): pass\n"
    )
    finished = run_pytest(project)
    assert finished.returncode == 1
    assert finished.stdout.count("is ready in") == 1
    found = re.search("The files of the broker are in (.*)", finished.stdout)
    assert found is not None and left_in(project) == [Path(found[1])]
    assert (Path(found[1]) / "data" / "metadata").is_dir()


def test_a_test_may_leave_its_broker_killed_or_paused(project: Path) -> None:
    (project / "test_ends.py").write_text(
        """
import pytest
from pyxbroker.testing import factories

own = factories.pulsar_proc(scope="function")
namespace = factories.pulsar_namespace("own")

@pytest.mark.parametrize("how", ["kill", "pause"])
def test_ends(own, namespace, how):
    getattr(own, how)()
"""
    )
    finished = run_pytest(project)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert left_in(project) == []


def test_options_settings_and_the_ini_file(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\npulsar_settings =\n  clusterName = east\n")
    (project / "test_settings.py").write_text(
        """
import json, urllib.request
from pyxbroker.testing import factories

other = factories.pulsar_proc(clusterName="west", maxMessageSize=1000000)

def cluster(broker):
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/clusters") as answer:
        return json.load(answer)

def test_clusters(pulsar_proc, other):
    assert cluster(pulsar_proc) == ["east"] and cluster(other) == ["west"]
    assert pulsar_proc.settings["maxMessageSize"] == "2000000"
"""
    )
    finished = run_pytest(project, "--pulsar-setting", "maxMessageSize=2000000")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert run_pytest(project, "--pulsar-setting", "nonsense").returncode == 1


@pytest.mark.parametrize("may_force", [True, False])
def test_an_external_broker_keeps_nothing_of_a_test(project: Path, may_force: bool) -> None:
    (project / "test_external.py").write_text(
        """
import urllib.request

def test_external(pulsar_namespace, pulsar_noproc):
    assert pulsar_namespace.broker == pulsar_noproc
    for path, body in (("plain", None), ("parts/partitions", b"2")):
        url = f"{pulsar_namespace.admin_url}/admin/v2/persistent/{pulsar_namespace}/{path}"
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")).close()
"""
    )
    with pyxbroker.testing.broker(forceDeleteNamespaceAllowed=may_force) as broker:
        urls = ["--pulsar-url", broker.service_url, "--pulsar-admin-url", broker.admin_url]
        finished = run_pytest(project, *urls)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert namespaces_of(broker) == ["public/default"]


def namespaces_of(broker: pyxbroker.testing.Broker) -> list[str]:
    from pyxbroker.testing.admin import _request

    return list(_request(broker.admin_url, "GET", "namespaces/public"))


def test_the_plugin_imports_nothing_of_a_broker() -> None:
    program = """
import pytest, sys
before = set(sys.modules)
import pyxbroker.testing.plugin
print(*sorted(set(sys.modules) - before))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [each for each in found if each.startswith("pyxbroker")]
    assert all(each.partition(".")[2].split(".")[0] in ("", "testing") for each in ours), ours
    assert not {"asyncio", "http.client", "uvloop", "google.protobuf"} & set(found)
