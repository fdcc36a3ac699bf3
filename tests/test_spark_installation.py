"""What the Spark connector says of a wrong PySpark, Python or Java. No JVM is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyxbroker.spark import installation
from pyxbroker.spark.errors import PulsarSparkError, WrongInstallation, without_traceback

OWN = "{}.{}".format(*sys.version_info)
HIDDEN = "SPARK_HIDE_TRACEBACK"
Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Write a program that prints lines."""

    def write(name: str, *lines: str, to: int = 1) -> Path:
        made = tmp_path / name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("#!/bin/sh\n" + "".join(f"echo '{each}' >&{to}\n" for each in lines))
        made.chmod(0o755)
        return made

    return write


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def context_of(master: str, python: str = "python3", **conf: str) -> Any:
    """What register() looks at of a SparkContext."""
    found = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(
        master=master, pythonExec=python, getConf=lambda: SimpleNamespace(get=found.get)
    )


# --- PySpark --------------------------------------------------------------------------------------


def test_a_pyspark_without_data_sources_is_named_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"\n')
    (tmp_path / "pyspark" / "sql" / "__init__.py").write_text("")
    ran = subprocess.run(
        [sys.executable, "-c", "from pyxbroker.spark import register; register(None)"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    last = ran.stderr.splitlines()[-1]
    assert f"WrongInstallation: PySpark 3.5.7 in {tmp_path}/pyspark has no Python data" in last
    assert "it needs PySpark 4.0 or newer" in last


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    missing = ("pyarrow", "pulsar")
    monkeypatch.setattr(installation, "find_spec", lambda name: name not in missing or None)
    with pytest.raises(WrongInstallation, match=r"does not have pyarrow, pulsar-client: pip inst"):
        installation.check_libraries()


# --- the Python of workers ------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local-cluster[2,1,1024]"])
def test_workers_on_this_machine_run_this_python(master: str) -> None:
    context = context_of(master)
    installation.use_this_python(context)
    assert context.pythonExec == sys.executable


def test_a_python_that_was_chosen_is_left_and_checked(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = program("good", OWN, "")
    monkeypatch.setenv("PYSPARK_PYTHON", str(good))
    context = context_of("local[2]", str(good))
    installation.use_this_python(context)
    assert context.pythonExec == str(good)
    bare = program("bare", OWN, "pyxbroker pulsar")
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with pytest.raises(WrongInstallation) as refused:
        installation.use_this_python(context_of("local[2]", str(bare)))
    sentence = str(refused.value)
    assert f"workers run {bare}, which does not have pyxbroker, pulsar-client." in sentence
    assert f"Set PYSPARK_PYTHON to an interpreter that has pyxbroker, such as {sys.executable}" in (
        sentence
    )


def test_the_setting_of_a_session_chooses_the_python_too(program: Program) -> None:
    good = program("good", OWN, "")
    context = context_of("local[2]", spark_pyspark_python=str(good))
    installation.use_this_python(context)
    assert context.pythonExec == str(good)


def test_the_workers_of_a_cluster_keep_their_python(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(program("python3", OWN, "").parent), prepend=os.pathsep)
    context = context_of("spark://head:7077")
    installation.use_this_python(context)
    assert context.pythonExec == "python3"
    bare = program("python3", OWN, "pyarrow")
    with pytest.raises(WrongInstallation, match=f"{bare}, which does not have pyarrow"):
        installation.use_this_python(context)


@pytest.mark.spark
def test_a_python_that_does_not_go_with_this_one_is_told_with_the_reason(
    program: Program, tmp_path: Path
) -> None:
    for python, reason in (
        (tmp_path / "none", "cannot be started: No such file or directory"),
        (program("old", "3.1", ""), f"is Python 3.1, while the driver is Python {OWN}"),
        (program("torn"), "is Python , while"),
    ):
        with pytest.raises(WrongInstallation, match=f"run {python}, which {reason}"):
            installation.check_worker_python(str(python))
    installation.check_worker_python(sys.executable)


# --- Java -----------------------------------------------------------------------------------------


def test_java_that_is_missing_or_old_is_told(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs Java 17 or newer, and there is no java in PATH" in installation.java_trouble()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert f"{tmp_path}/jdk/bin/java cannot be started" in installation.java_trouble()
    for version, trouble in (("1.8.0_292", "is Java 8."), ("11.0.2", "is Java 11."), ("17", "")):
        program("jdk/bin/java", f'openjdk version "{version}"', to=2)
        told = installation.java_trouble()
        assert trouble in told and bool(told) is bool(trouble)


# --- errors of workers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("main", "error", "is_hidden"),
    [
        ("pyspark.daemon", PulsarSparkError("no"), True),
        ("pyspark.daemon", ValueError("a bug"), False),
        ("my_job", PulsarSparkError("no"), False),
        (None, PulsarSparkError("no"), False),
    ],
)
def test_a_worker_shows_a_sentence_and_of_a_bug_the_traceback(
    monkeypatch: pytest.MonkeyPatch, main: str | None, error: Exception, is_hidden: bool
) -> None:
    monkeypatch.setenv(HIDDEN, "")
    module = SimpleNamespace(__spec__=SimpleNamespace(name=main) if main else None)
    monkeypatch.setitem(sys.modules, "__main__", module)  # type: ignore[arg-type]

    @without_traceback()
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        fail()
    assert bool(os.environ[HIDDEN]) is is_hidden
