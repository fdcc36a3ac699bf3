"""In the path of processes that a test starts while its calls are recorded; see mutants.calls."""

import os
from pathlib import Path

if "MUTANTS_CALLS" in os.environ:
    from mutants.calls import follow_process

    folder, test_file, source = os.environ["MUTANTS_CALLS"].split("|")
    follow_process(Path(folder), test_file, source)
