"""GEMMs that hand statistics of rows to one another: what the problem is made of."""

from __future__ import annotations

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.problems import GemmMomentsProblem, GemmProblem, NormProblem

F16 = DType.F16
WRITES = GemmMomentsProblem(6304, 768, 3072, F16, F16, ("Bias", "Add", "Moments"))
READS = GemmMomentsProblem(6304, 2304, 768, F16, F16, ("FoldedLayerNorm", "Bias"))
BOTH = GemmMomentsProblem(100, 128, 64, F16, F16, ("FoldedRmsNorm", "Add", "Moments"))


def test_the_product_alone_has_no_steps_of_statistics() -> None:
    assert WRITES.product == GemmProblem(6304, 768, 3072, F16, F16, ("Bias", "Add"))
    assert READS.product == GemmProblem(6304, 2304, 768, F16, F16, ("Bias",))
    assert BOTH.product == GemmProblem(100, 128, 64, F16, F16, ("Add",))
    assert READS.flops == READS.product.flops


def test_the_norm_is_that_of_the_input_s_rows() -> None:
    assert WRITES.norm is None
    assert READS.norm == NormProblem(6304, 768, True, F16, F16, ("Scale", "Bias"))
    assert BOTH.norm == NormProblem(100, 64, False, F16, F16, ("Scale",))


def test_statistics_are_read_and_written_beside_the_product_s_bytes() -> None:
    """Two numbers in float32 for each 64 columns of a row."""
    for problem, columns in ((WRITES, 768), (READS, 768), (BOTH, 64 + 128)):
        statistics = problem.m * columns // 64 * 8
        assert problem.bytes_moved == problem.product.bytes_moved + statistics


def test_onnx_runtime_takes_a_kernel_for_the_norm() -> None:
    arch = get(90)
    assert READS.norm is not None
    apart = READS.product.onnxruntime_us(arch) + READS.norm.onnxruntime_us(arch)
    assert READS.onnxruntime_us(arch) == apart
    assert WRITES.onnxruntime_us(arch) == WRITES.product.onnxruntime_us(arch)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (WRITES, "gemm 6304x768x3072, f16, Bias+Add+Moments"),
        (READS, "gemm 6304x2304x768, f16, FoldedLayerNorm+Bias"),
    ],
)
def test_reports_name_the_steps(problem: GemmMomentsProblem, words: str) -> None:
    assert problem.description == words


def test_the_tuner_has_no_reference_for_it() -> None:
    assert READS.reference is None
