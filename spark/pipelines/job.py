"""What all jobs have: a session of Spark, a progress line, and a sentence for whatever ends one.

What Spark itself says (its log, the JVM's warnings, traces of Python workers) goes into a file: a
job tells its progress on stderr, and what went wrong in one sentence. The file stays where that
sentence is not ours. Under spark-submit the session and its log are spark-submit's.
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
"""What a shell says of a process that Ctrl-C ended: what it was to show was not shown."""

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
"""Of a session on this machine, unless --conf says otherwise."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's, which print each error of a query as JSON with Java's stack, beside raising it."""

_USERS_ERRORS = (WrongOption, WrongInstallation, NotReachable, TopicMissing)
_OURS = re.compile(r"pyxbroker\.spark\.errors\.(\w+): (.+)")


class Failure(NamedTuple):
    """Why a job ended."""

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
        """Whether Ctrl-C or SIGTERM asked it to end."""
        self._log: Path | None = None

    @contextmanager
    def run(self) -> Iterator[None]:
        """What the job does is the body; where that fails the process ends with a sentence."""
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
                sentence = f"{sentence} (what Spark said is in {self._log})"
            fail(sentence, failure.status)
        self._remove_log()

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """A session with the connector and the jobs' own sources; stopped afterwards."""
        check_libraries()
        self.progress.show("starting Spark")
        with self._stderr_in_log():
            spark = self._make_session()
        try:
            _register(spark)
            yield spark
        finally:
            spark.stop()

    def stop_by_signals(self, what_first: str) -> None:
        """Let the first Ctrl-C or SIGTERM set `stopping`; the second one interrupts.

        what_first: what the job does before it ends. Spark's session has a handler of its own,
        which this one replaces.
        """

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            # Not by Progress, whose lock the code that is interrupted may hold.
            os.write(2, f"\n{self.name}: {what_first}; Ctrl-C again stops at once\n".encode())

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
        """Let the JVM, which starts within the body, have a file as its stderr."""
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
    """Show how many tasks of Spark's are done, while the body runs."""
    tracker = spark.sparkContext.statusTracker()

    def look() -> str | None:
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        known = [each for each in stages if each is not None]
        if not known:
            return None
        done = sum(each.numCompletedTasks for each in known)
        return f"{what}: {done} of {sum(each.numTasks for each in known)} tasks"

    job.progress.show(what)
    with job.progress.watched(look):
        yield


def is_submitted() -> bool:
    """Whether spark-submit started this program, and with it the JVM."""
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
    """The sentence for an error of the connector or of Spark; None: it is neither.

    Spark hands what a Python worker raised on as text, with the trace before it.
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
