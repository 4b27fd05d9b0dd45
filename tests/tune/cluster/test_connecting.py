"""The processes of a cluster on this host."""

from __future__ import annotations

import subprocess
import sys

import pytest

# adopts orphans, as the first process of a container does, and never asks how they ended
_INIT = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1]]))
"""
_ENDED = """
import subprocess, time
from onnxbolt.tune.cluster import connecting
nanny = subprocess.Popen(["sh", "-c", "sleep 60 & echo begun; wait"], stdout=subprocess.PIPE)
assert nanny.stdout.readline() == b"begun\\n"
start = time.monotonic()
connecting._end(nanny)
print(time.monotonic() - start)
"""


def test_children_that_nobody_reaps_have_ended() -> None:
    pytest.importorskip("onnxbolt.tune.cluster.connecting")
    command = [sys.executable, "-c", _INIT, _ENDED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5
