"""GEMMs whose rows are normalized: what the problem is made of."""

from __future__ import annotations

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.problems import GemmNormProblem, GemmProblem, NormProblem
from onnxbolt.tune.acceptance import limits_of

F16 = DType.F16
STORED = ("Bias", "Add", "Store", "LayerNorm", "Scale", "Bias")
LAYER = GemmNormProblem(1280, 768, 3072, F16, F16, STORED)
RMS = GemmNormProblem(1280, 768, 3072, F16, F16, ("RmsNorm", "Scale"))


def test_it_is_a_product_and_a_norm() -> None:
    assert LAYER.product == GemmProblem(1280, 768, 3072, F16, F16, ("Bias", "Add"))
    assert LAYER.norm == NormProblem(1280, 768, True, F16, F16, ("Scale", "Bias"))
    assert RMS.product == GemmProblem(1280, 768, 3072, F16, F16, ())
    assert RMS.norm == NormProblem(1280, 768, False, F16, F16, ("Scale",))
    assert LAYER.flops == LAYER.product.flops == 2 * 1280 * 768 * 3072


def test_its_bytes_are_those_of_one_kernel() -> None:
    """The residual is read, what is normalized and y are written."""
    operands = 1280 * 3072 + 768 * 3072
    assert LAYER.bytes_moved == 2 * (operands + 3 * 1280 * 768)
    assert RMS.bytes_moved == 2 * (operands + 1280 * 768)


def test_onnx_runtime_takes_two_kernels() -> None:
    arch = get(90)
    apart = LAYER.product.onnxruntime_us(arch) + LAYER.norm.onnxruntime_us(arch)
    assert LAYER.onnxruntime_us(arch) == apart


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (LAYER, "gemm 1280x768x3072, layer norm, f16, Bias+Add+Store+LayerNorm+Scale+Bias"),
        (RMS, "gemm 1280x768x3072, rms norm, f16, RmsNorm+Scale"),
    ],
)
def test_reports_say_what_is_normalized(problem: GemmNormProblem, words: str) -> None:
    assert problem.description == words


def test_the_profiler_gets_limits_for_both_chains() -> None:
    """Five limits of the problem; three of each chain, and one for each of its steps."""
    reference = LAYER.reference
    assert (reference.extents, reference.terms) == ((1280, 768, 3072, 1), (3072, 768))
    assert len(limits_of(LAYER, reference)) == 5 + (3 + 2) + (3 + 2)
    assert len(limits_of(RMS, RMS.reference)) == 5 + 3 + (3 + 1)
