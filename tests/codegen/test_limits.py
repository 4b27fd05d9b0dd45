"""Limits of a compiler process: processor time, memory and files."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnxbolt.codegen import limits
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.errors import BuildError

SHOW = (
    "import resource as r; print(*(r.getrlimit(k)[0] for k in (r.RLIMIT_CPU, r.RLIMIT_AS,"
    " r.RLIMIT_FSIZE)))"
)


def test_the_command_has_the_limits() -> None:
    done = subprocess.run(
        limits.limited([sys.executable, "-c", SHOW]), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        str(limit) for limit in (limits.CPU_SECONDS, limits.MEMORY, limits.FILE)
    ]


def test_a_lower_limit_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CPU_SECONDS", 100)
    inner = limits.limited([sys.executable, "-c", SHOW])
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -t 50; exec "$@"', "sh", *inner],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[0] == "50"


def test_an_endless_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CPU_SECONDS", 1)
    done = subprocess.run(limits.limited([sys.executable, "-c", "while True: pass"]), check=False)
    assert done.returncode == -signal.SIGXCPU


def test_a_source_that_takes_too_much_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(limits, "MEMORY", 2**29)
    source = """template <int N, int M> struct T {
  static constexpr long v = T<N - 1, 2 * M>::v + T<N - 1, 2 * M + 1>::v;
};
template <int M> struct T<0, M> { static constexpr long v = M; };
long x = T<26, 0>::v;
"""
    with pytest.raises(
        BuildError,
        match=r"each compiler process is limited to 3600 s of CPU time and 0\.5 GiB of memory",
    ):
        compile_units([Unit("bomb.cc", source)], find_toolchain())
    assert not list((tmp_path / "cache" / "objects").iterdir())  # another machine may have more
