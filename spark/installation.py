"""Checks of what is installed: PySpark 4, its libraries, Java, and the Python of Spark's workers.

Spark itself reports what is missing as a traceback of a worker or of its launcher. Each check here
raises WrongInstallation, whose sentence names the interpreter and says what to do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyxbroker.spark.errors import WrongInstallation

PACKAGES = {"pyxbroker": "pyxbroker", "pyarrow": "pyarrow", "pulsar": "pulsar-client"}
"""Modules that the driver and each worker import, with the names of their packages."""
JAVA_MIN = 17
INSTALL = "pip install 'pyxbroker[spark]'"
PROBE_TIMEOUT_S = 60
_PROBE = """\
import importlib.util, sys
print("%d.%d" % sys.version_info[:2])
print(*(each for each in sys.argv[1:] if importlib.util.find_spec(each) is None))
"""


def check_libraries() -> None:
    """Raise WrongInstallation if this Python lacks PySpark 4 or a library of the extra `spark`."""
    try:
        import pyspark
        import pyspark.sql.datasource
    except ImportError as error:
        version = getattr(sys.modules.get("pyspark"), "__version__", None)
        if version is None:
            raise WrongInstallation(f"PySpark cannot be imported: {error}; {INSTALL}.") from None
        raise WrongInstallation(
            f"PySpark {version} in {pyspark.__path__[0]} has no Python data sources, which the"
            " format pulsar is: it needs PySpark 4.0 or newer (pip install 'pyspark>=4')."
        ) from None
    if missing := [package for name, package in PACKAGES.items() if find_spec(name) is None]:
        raise WrongInstallation(
            f"{sys.executable} does not have {', '.join(missing)}: {INSTALL} brings what the"
            " format pulsar needs."
        )


def use_this_python(context: Any) -> None:
    """Let the workers of a SparkContext run this interpreter, or check the one that was chosen.

    By default Spark takes the first python3 of PATH, which ignores a virtual environment that is
    not active. A cluster's nodes may not have this interpreter, so it is set only for a local
    master. Raises WrongInstallation.
    """
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if chosen:
        context.pythonExec = chosen
    elif context.master.startswith("local"):
        context.pythonExec = sys.executable
    if context.pythonExec != sys.executable:
        check_worker_python(context.pythonExec)


def check_worker_python(python: str) -> None:
    """Raise WrongInstallation if an interpreter cannot run the connector.

    Spark plans each query of a Python data source in a worker on the driver's machine, so the
    interpreter has to work here, wherever the executors are.
    """
    trouble = _trouble_of(python)
    if trouble:
        where = shutil.which(python) or python
        raise WrongInstallation(
            f"Spark's Python workers run {where}, which {trouble}. Set PYSPARK_PYTHON to an"
            f" interpreter that has pyxbroker, such as {sys.executable}, before the session is"
            f" made, or install it there ({INSTALL}); on a cluster each node needs it."
        )


def _trouble_of(python: str) -> str:
    """Return what an interpreter lacks, as the end of a sentence; empty if it lacks nothing."""
    try:
        ran = subprocess.run(
            [python, "-c", _PROBE, *PACKAGES],
            check=False,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    except subprocess.TimeoutExpired:
        return f"did not answer within {PROBE_TIMEOUT_S} s"
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[-1]
        return f"cannot be used: {last}"
    version, _, missing = ran.stdout.partition("\n")
    own = "{}.{}".format(*sys.version_info)
    if version != own:
        return f"is Python {version}, while the driver is Python {own}: Spark needs the same one"
    names = [PACKAGES[each] for each in missing.split()]
    return f"does not have {', '.join(names)}" if names else ""


def java_trouble() -> str:
    """Return why Spark's Java cannot run, as a sentence; empty if a suitable Java is installed.

    Called when Spark's launcher has failed, because its own error has no reason.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_MIN} or newer"
    advice = "Install it, or set JAVA_HOME to the directory of one that is installed."
    if java is None:
        return f"{needed}, and there is no java in PATH. {advice}"
    try:
        output = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{needed}, and {java} cannot be started: {error}. {advice}"
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found and int(found[1]) < JAVA_MIN:
        return f"{needed}, and {java} is Java {found[1]}. {advice}"
    return ""
