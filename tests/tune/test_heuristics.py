"""Seeds from nvidia-matmul-heuristics, played by a stand-in: they are mapped to our own
candidates, and absent they are none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.tune import heuristics
from tests.tune.fakes import conv
from tests.tune.fakes import gemm as problem

TILES = {"CUTLASS": [(128, 64, 64), (96, 96, 96)], "CUTLASS3": [(128, 256, 64)]}


class Interface:
    def __init__(self, backend: str, **_: Any) -> None:
        self.target = backend

    def createBackend(self, target: str) -> str:  # noqa: N802
        return target

    def makeNvMatmulHeuristicsProblem(self, *sizes: Any) -> Any:  # noqa: N802
        return sizes

    def getEx(self, asked: Any, count: int, backend: str, precision: str) -> list[dict[str, Any]]:  # noqa: N802
        assert asked[:3] == (1280, 3072, 768)
        assert precision == "HSH"
        return [
            {"kernel": SimpleNamespace(cta_tile_m=m, cta_tile_n=n, cta_tile_k=k)}
            for m, n, k in TILES[backend]
        ][:count]


class Names:
    def __getattr__(self, name: str) -> str:
        return name

    def __getitem__(self, name: str) -> str:
        return name


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    heuristics._library.cache_clear()
    yield
    heuristics._library.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    enums = {
        f"NvMatmulHeuristics{name}": Names()
        for name in ("Target", "Flags", "NvidiaGpu", "MatmulLayout")
    }
    monkeypatch.setitem(
        sys.modules,
        "nvMatmulHeuristics",
        SimpleNamespace(NvMatmulHeuristicsInterfaceEx=Interface, **enums),
    )


@pytest.mark.usefixtures("installed")
def test_proposed_tiles_are_our_candidates_with_that_tile() -> None:
    seeds = heuristics.seeds(problem(), get(90))
    assert {(c.family, c.named()["tile"]) for c in seeds} == {
        (named("gemm_2x"), (128, 64, 64)),
        (named("gemm_3x"), (128, 256, 64)),
    }
    assert set(seeds) <= set(candidates(problem(), get(90)))
    assert {c.family for c in heuristics.seeds(problem(), get(80))} == {named("gemm_2x")}


@pytest.mark.usefixtures("installed")
def test_what_the_library_does_not_know_has_no_seeds() -> None:
    assert heuristics.seeds(conv(), get(90)) == ()
    assert heuristics.seeds(problem(), get(75)) == ()
    assert heuristics.seeds(replace(problem(), dtype=DType.F32, out=DType.F32), get(90)) == ()


def test_without_the_library_there_are_no_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    assert heuristics.seeds(problem(), get(90)) == ()
