"""Statistics of rows inside ONNX Runtime: a product that writes those of its result, and one that
reads those of its input. Kernels run on the CPU."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from onnxbolt.problems.gemm_moments import PART
from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred, session

WIDTH, DEPTH = 2 * PART, 3 * PART
WRITES = fx.fused_model(
    fx.WRITES_STATISTICS, ["B", "S", 24], (WIDTH, 24), [[WIDTH], ["B", "S", WIDTH]]
)
FIXED = fx.fused_model(fx.WRITES_STATISTICS, [2, 5, 24], (WIDTH, 24), [[WIDTH], [2, 5, WIDTH]])
READS = fx.fused_model(
    fx.READS_STATISTICS,
    ["B", "S", DEPTH],
    (16, DEPTH),
    [[DEPTH // PART, "R", 2], [16], [16]],
    epilogue_params=[0.25],
)
CASES = {
    "writes": (WRITES, ((2, 5, 24), (2, 5, WIDTH))),
    "reads": (READS, ((2, 5, DEPTH), (DEPTH // PART, 10, 2))),
}
Refused = ort.capi.onnxruntime_pybind11_state.InvalidArgument


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    path = tmp_path_factory.mktemp("library") / "statistics.onnxbolt.so"
    return fx.host_library(path, (fx.WRITES_STATISTICS, fx.READS_STATISTICS))


@pytest.fixture
def library(built: fx.HostLibrary) -> fx.HostLibrary:
    built.machine()
    built.limit()
    return built


@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_body(library: fx.HostLibrary, case: str) -> None:
    model, shapes = CASES[case]
    compare(model, library, *shapes)


def test_statistics_are_those_of_all_rows(library: fx.HostLibrary) -> None:
    assert inferred(FIXED, library, "statistics") == [WIDTH // PART, 10, 2]
    assert inferred(WRITES, library) == ["B", "S", WIDTH]
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.standard_normal(shape).astype(np.float32)
        for value, shape in zip(WRITES.graph.input, CASES["writes"][1], strict=True)
    }
    y, statistics = session(WRITES, library).run(None, feeds)
    parts = y.reshape(-1, WIDTH // PART, PART).transpose(1, 0, 2)
    np.testing.assert_allclose(statistics[..., 0], parts.mean(-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics[..., 1], parts.var(-1) * PART, rtol=1e-5)


def test_statistics_of_other_rows_are_refused(library: fx.HostLibrary) -> None:
    x, statistics = np.zeros((2, 5, DEPTH), np.float32), np.zeros((3, 9, 2), np.float32)
    names = [value.name for value in READS.graph.input]
    with pytest.raises(Refused, match=r"input 2 has shape .* expected .*10"):
        session(READS, library).run(None, dict(zip(names, (x, statistics), strict=True)))


@pytest.mark.parametrize("case", CASES)
def test_rows_with_statistics_are_not_divided_among_launches(
    library: fx.HostLibrary, case: str
) -> None:
    model, shapes = CASES[case]
    library.limit(4)
    feeds = {
        value.name: np.zeros(shape, np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }
    before = library.launches
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.RuntimeException, match="an extent"):
        session(model, library).run(None, feeds)
    assert library.launches == before


def test_no_rows_have_no_statistics(library: fx.HostLibrary) -> None:
    feeds = {"x": np.zeros((0, 5, 24), np.float32)}
    feeds[WRITES.graph.input[1].name] = np.zeros((0, 5, WIDTH), np.float32)
    y, statistics = session(WRITES, library).run(None, feeds)
    assert (y.shape, statistics.shape) == ((0, 5, WIDTH), (WIDTH // PART, 0, 2))
