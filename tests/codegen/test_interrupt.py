"""Ctrl-C while a library is compiled: nothing of the compiler stays, neither processes nor
files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT

# as nvcc does, it has files in TMPDIR and removes them at the end, which does not come
COMPILER = """#!/bin/sh
echo $$ > "$TMPDIR/tmpxft_$$"
echo $$ > "{started}.part" && mv "{started}.part" "{started}"
while :; do sleep 0.1; done
"""
# SIGINT is ignored in what a shell without job control runs in the background; Python and the
# compiler would inherit that
BUILD = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import Toolchain
toolchain = Toolchain(Path(sys.argv[1]), "13.0.88", Path(sys.argv[2]))
compile_units([Unit("a.cu", "int a;", 90)], toolchain)
"""


def is_alive(pid: int) -> bool:
    """False for a process that has ended, whether or not anybody asked for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    compiler, started, temporary, cache = (
        tmp_path / name for name in ("nvcc", "started", "tmp", "cache")
    )
    compiler.write_text(COMPILER.format(started=started))
    compiler.chmod(0o755)
    temporary.mkdir()
    version = tmp_path / "cutlass" / "include" / "cutlass" / "version.h"
    version.parent.mkdir(parents=True)
    version.touch()
    environment = {
        **os.environ,
        "ONNXBOLT_CACHE_DIR": str(cache),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", BUILD, str(compiler), str(tmp_path / "cutlass")]
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        while not started.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        assert list(cache.rglob("tmpxft_*"))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    assert not is_alive(int(started.read_text()))
    assert list(temporary.iterdir()) == []
    assert not list(cache.rglob("tmpxft_*"))
    assert {path.name for path in cache.iterdir()} <= {"compile.lock", "objects"}
    assert list((cache / "objects").iterdir()) == []
