"""Compiling on the workers of a cluster: objects and failures are kept as if made here."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from onnxbolt.codegen import artifacts
from onnxbolt.codegen.artifacts import Unit
from onnxbolt.errors import BuildError
from onnxbolt.options import Options
from onnxbolt.tune.cluster import compilers, opening
from onnxbolt.tune.cluster.compilers import Compilers
from onnxbolt.tune.cluster.opening import cluster_gpus
from onnxbolt.tune.cluster.pool import Pool
from onnxbolt.tune.library import profiling_toolchain
from tests.tune.cluster.conftest import UUIDS, Cluster

GOOD = Unit("good.cc", "int answer() { return 42; }\n")
BAD = Unit("bad.cc", "int answer( { return 42; }\n")


def test_units_are_compiled_by_workers_and_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = profiling_toolchain()
    monkeypatch.setattr(compilers, "compile_each", lambda units, *_, **__: iter(()))
    pools = list[Pool]()

    def of(pool: Pool) -> Compilers:
        pools.append(pool)
        return Compilers(pool)

    monkeypatch.setattr(opening, "Compilers", of)
    with cluster_gpus(UUIDS[:1], [90], Options(tune=True, gpus="all"), print) as started:
        (gpus,) = started()
        while pools[0].empty:  # workers join as compilers by themselves, which takes a while
            time.sleep(0.05)
        found = dict(gpus.compile_each([GOOD, BAD], toolchain))
    good, bad = found[GOOD], found[BAD]
    assert isinstance(good, Path)
    assert good.read_bytes().startswith(b"\x7fELF")
    assert isinstance(bad, BuildError)
    assert "bad.cc does not compile: " in str(bad)
    assert "error" in bad.log
    assert artifacts.known(GOOD, toolchain) == good
    assert dict(artifacts.compile_each([GOOD], toolchain)) == {GOOD: good}


def test_without_such_workers_units_are_compiled_here(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(Pool(_Nobody(), "CPU", compilers.admit_compiler, print))
        found = dict(Compilers(pool).compile_each([GOOD], profiling_toolchain()))
    assert isinstance(found[GOOD], Path)


class _Nobody:
    """A client of a cluster without workers."""

    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, object]]:
        return {"workers": {}}
