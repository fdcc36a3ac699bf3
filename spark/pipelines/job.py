"""The common parts of jobs: a Spark session, a progress line, and one sentence for each error.

A job writes its progress and its errors to stderr. Spark's output (its log, the JVM's warnings,
traces of Python workers) goes into a file. The file is kept if the error is not ours. Under
spark-submit the session and its log belong to spark-submit.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.command_line import fail
from pyxbroker.spark import errors
from pyxbroker.spark.errors import (
    NotReachable,
    PulsarSparkError,
    TopicMissing,
    WrongInstallation,
    WrongOption,
)
from pyxbroker.spark.installation import check_libraries, java_trouble
from pyxbroker.spark.pipelines.arguments import LOCAL
from pyxbroker.spark.pipelines.progress import Progress
from pyxbroker.spark.pipelines.reasons import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRONG_USAGE = 2
INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # a message may have a property twice
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
}
"""The defaults of a session on this machine, which --conf overrides."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers that print each error of a query, in addition to raising it."""

_USERS_ERRORS = (WrongOption, WrongInstallation, NotReachable, TopicMissing)
_OURS = re.compile(r"pyxbroker\.spark\.errors\.(\w+): (.+)")


class Failure(NamedTuple):
    """The reason for which a job ended."""

    sentence: str
    status: int
    is_ours: bool


class Job:
    """One run of a job."""

    def __init__(self, name: str, given: Namespace) -> None:
        self.name = name
        self.given = given
        self.progress = Progress(name)
        self.stopping = False
        """True after Ctrl-C or SIGTERM."""
        self._log: Path | None = None

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run the body. If it fails, print one sentence and end the process."""
        try:
            yield
        except KeyboardInterrupt:
            self.progress.clear()
            self._remove_log()
            fail("interrupted", INTERRUPTED)
        except Exception as error:
            failure = explain(error)
            if failure is None:
                raise
            self.progress.clear()
            sentence = failure.sentence.rstrip(".")
            if failure.is_ours:
                self._remove_log()
            elif self._log is not None:
                sentence = f"{sentence} (Spark's output is in {self._log})"
            fail(sentence, failure.status)
        self._remove_log()

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Provide a session with the connector and the jobs' sources, and stop it afterwards."""
        check_libraries()
        self.progress.show("starting Spark")
        with self._stderr_in_log():
            spark = self._make_session()
        try:
            _register(spark)
            yield spark
        finally:
            spark.stop()

    def stop_by_signals(self, announcement: str) -> None:
        """Let the first Ctrl-C or SIGTERM set `stopping`; the second one interrupts.

        announcement: what the job does before it ends. The handler replaces that of Spark's
        session.
        """

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            # Not with Progress, because the interrupted code may hold its lock.
            os.write(2, f"\n{self.name}: {announcement}; Ctrl-C again stops immediately\n".encode())

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    # --- Spark ----------------------------------------------------------------------------------

    def _make_session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = SETTINGS
        builder = SparkSession.builder.appName(f"pyxbroker {self.name}")
        if not is_submitted():
            builder = builder.master(self.given.master or LOCAL)
            settings = LOCAL_SETTINGS | SETTINGS
        elif self.given.master is not None:
            raise WrongOption("--master is spark-submit's own option: give it before the program")
        for key, value in (settings | dict(self.given.conf)).items():
            builder = builder.config(key, value)
        from pyspark.errors import PySparkRuntimeError

        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if trouble := java_trouble():
                raise WrongInstallation(trouble) from error
            raise

    @contextmanager
    def _stderr_in_log(self) -> Iterator[None]:
        """Redirect the stderr of the JVM, which starts within the body, to a file."""
        if is_submitted():
            yield
            return
        file, name = tempfile.mkstemp(prefix="pyxbroker-spark-", suffix=".log")
        self._log = Path(name)
        before = os.dup(2)
        os.dup2(file, 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(file)

    def _remove_log(self) -> None:
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None


@contextmanager
def watch_tasks(job: Job, spark: SparkSession, what: str) -> Iterator[None]:
    """Show how many Spark tasks are done while the body runs."""
    tracker = spark.sparkContext.statusTracker()

    def current() -> str | None:
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        known = [each for each in stages if each is not None]
        if not known:
            return None
        done = sum(each.numCompletedTasks for each in known)
        return f"{what}: {done} of {sum(each.numTasks for each in known)} tasks"

    job.progress.show(what)
    with job.progress.watched(current):
        yield


def is_submitted() -> bool:
    """Return True if spark-submit started this program and the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _register(spark: SparkSession) -> None:
    from pyxbroker.spark import register
    from pyxbroker.spark.pipelines.raw import DecodedTopics, RawTopics

    register(spark)
    for name in _LOGGERS:
        logging.getLogger(name).disabled = True
    for source in (RawTopics, DecodedTopics):
        spark.dataSource.register(source)


def explain(error: Exception) -> Failure | None:
    """Return the sentence for an error of the connector or of Spark; None for other errors.

    Spark passes an error of a Python worker on as text, after its traceback.
    """
    if isinstance(error, PulsarSparkError):
        return Failure(str(error), WRONG_USAGE if isinstance(error, _USERS_ERRORS) else 1, True)
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    text = str(error)
    if found := _OURS.findall(text):
        name, sentence = found[-1]
        kind = getattr(errors, name, PulsarSparkError)
        return Failure(sentence, WRONG_USAGE if issubclass(kind, _USERS_ERRORS) else 1, True)
    return Failure(f"Spark failed: {first_line(error)[:400]}", 1, False)
