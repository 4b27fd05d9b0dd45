"""Commands that compile nothing run where parts of POSIX are missing, as on Windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

# attributes of os and signal, and modules, that Windows lacks
ATTRIBUTES = (
    *("fork", "forkpty", "geteuid", "getuid", "getpgid", "killpg", "memfd_create", "mkfifo"),
    *("sched_getaffinity", "setsid", "statvfs", "sysconf", "uname"),
)
SIGNALS = "SIGALRM", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"
MODULES = "fcntl", "grp", "pty", "pwd", "resource", "termios"
FLAGS = "--no-library", "--fuse=all"
# the first argument has lists of arguments as JSON, the second a model that they write; prints the
# exit code of each list
SCRIPT = f"""
import json, os, signal, sys, warnings
import onnxruntime, platformdirs  # which have code of their own for Windows
for name in {ATTRIBUTES}:
    delattr(os, name)
for name in {SIGNALS}:
    delattr(signal, name)
for name in {MODULES}:
    sys.modules[name] = None
# text files are UTF-8 everywhere; without a name, Windows would choose another encoding
warnings.filterwarnings("error", category=EncodingWarning, module="onnxbolt")
from onnxbolt.cli import main
for arguments in json.loads(sys.argv[1]):
    print("exit code", main(arguments))
import onnxbolt
options = onnxbolt.session_options(sys.argv[2], providers=["CPUExecutionProvider"])
onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
"""


def test_commands_that_compile_nothing_need_no_posix(small_model: Path, tmp_path: Path) -> None:
    source, out = str(small_model), str(tmp_path / "out.onnx")
    lock, report = str(tmp_path / "lock"), str(tmp_path / "report.json")
    plain = [source, out, *FLAGS, "--arch=sm_90a", f"--lock={lock}"]
    commands = [
        ["optimize", *plain, f"--report={report}"],
        ["optimize", *plain, "--frozen", f"--report={tmp_path / 'report.md'}"],
        ["verify", source, out, f"--report={tmp_path / 'verify.json'}"],
        ["inspect", out],
        ["explain", source, "--fuse=all", "--arch=sm_90a"],
        ["report", report, str(tmp_path / "report.html")],
        ["report", "diff", report, report],
        ["ci", f"--model={source}", f"--lock={lock}", f"--out={tmp_path / 'ci'}", *FLAGS],
        ["cache", "list"],
        ["undo", out, str(tmp_path / "undone.onnx"), "--rule=gemm", "--no-library"],
        ["optimize", str(tmp_path / "missing.onnx"), out, "--no-library"],
    ]
    done = subprocess.run(
        [sys.executable, "-Xwarn_default_encoding", "-c", SCRIPT, json.dumps(commands), out],
        cwd=ROOT,
        # without fcntl a file that other tests have locked once counts as locked for ever
        env={**os.environ, "ONNXBOLT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    codes = [line for line in done.stdout.splitlines() if line.startswith("exit code")]
    assert codes == [*["exit code 0"] * (len(commands) - 1), "exit code 1"], (
        done.stdout + done.stderr
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(Path(report).read_text())["verification"]["passed"]
    assert done.stderr.splitlines()[-1].startswith("error: ")
