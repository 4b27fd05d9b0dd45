"""Programs of the tests under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from tests.conftest import ROOT

# seconds, far more than a program takes on a busy machine: for all of it, and until it uses the GPU
# (the tool's own limit is 10, behind which it watches nothing)
_LIMIT, _LAUNCH_LIMIT = 1800, 600
_FOUND = 17  # the tool's status where it found something
_SHOWN = 3000  # characters of each output


def check(tool: str, module: str, *arguments: str) -> None:
    """Run a module of the tests under "memcheck" or "racecheck". AssertionError where the tool
    finds something, where the program fails, or where the tool did not see its end."""
    command = [
        shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer",
        *("--tool", tool),
        *("--error-exitcode", str(_FOUND)),
        *("--launch-timeout", str(_LAUNCH_LIMIT)),
        *(sys.executable, "-m", module, *arguments),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT)
    said = f"status {result.returncode}\n{result.stdout[-_SHOWN:]}\n{result.stderr[-_SHOWN:]}"
    assert result.returncode == 0, said
    assert re.search(r"SUMMARY: 0 (errors|hazards)", result.stdout), said
