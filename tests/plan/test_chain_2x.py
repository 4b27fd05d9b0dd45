"""Predicted times of several GEMMs in one kernel with mma.sync, bias and ReLU behind each,
against measurements on an H200 (fp16), which runs sm_80's kernels."""

from __future__ import annotations

import math

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named, shortage
from onnxbolt.families.b2b_gemm_2x import B2bGemm2xConfig
from onnxbolt.families.blocks.b2b_mma import blocks_per_sm
from onnxbolt.plan.cost import fused_us, predict
from onnxbolt.problems import GemmProblem

# rows, k, columns of each layer; of the kernel the block's rows, columns and k, the other layers'
# columns, a warp's rows and columns, and stages; microseconds
MEASURED = (
    (16384, 256, (64, 16), (128, 64, 32), (16, 0, 0), (32, 64), 4, 6.50),
    (16384, 256, (64, 16), (64, 64, 32), (32, 0, 0), (32, 32), 4, 7.19),
    (32768, 576, (128, 64), (128, 128, 32), (64, 0, 0), (32, 128), 4, 21.4),
    (32768, 576, (128, 64), (128, 128, 32), (64, 0, 0), (64, 64), 4, 21.1),
    (128320, 96, (32, 96), (128, 32, 64), (128, 0, 0), (32, 32), 3, 26.0),
    (32768, 256, (256, 64), (128, 256, 32), (64, 0, 0), (32, 128), 4, 23.4),
    (16384, 256, (64, 16, 8), (128, 64, 32), (16, 16, 0), (32, 64), 4, 6.62),
    (16384, 64, (128, 256), (128, 128, 32), (256, 0, 0), (32, 64), 4, 10.8),
)


def _problem(rows: int, k: int, widths: tuple[int, ...]) -> GemmProblem:
    chain = ("Bias", "Relu") + ("Gemm", "Bias", "Relu") * (len(widths) - 1)
    return GemmProblem(rows, widths[-1], k, DType.F16, DType.F16, chain, widths[:-1])


def test_predictions_are_near_measurements() -> None:
    errors = []
    for rows, k, widths, block, later, warp, stages, us in MEASURED:
        block_rows, columns, depth = block
        config = B2bGemm2xConfig(
            arch=90,
            rows=block_rows,
            columns=columns,
            depth=depth,
            later=later,
            warp=warp,
            stages=stages,
            access_k=8,
            access_n=8,
        )
        errors.append(math.log(fused_us(_problem(rows, k, widths), config, get(90)) / us))
    assert max(map(abs, errors)) < 0.2
    assert abs(sum(errors) / len(errors)) < 0.06


@pytest.mark.parametrize("number", [75, 80, 86, 89])
def test_every_candidate_has_a_block_on_an_sm(number: int) -> None:
    for k, widths in ((256, (64, 16)), (576, (128, 64)), (30, (48, 20))):
        problem = _problem(16384, k, widths)
        assert all(
            blocks_per_sm(problem, config, get(number)) >= 1
            for config in named("b2b_gemm_2x").candidates(problem, get(number))
        )
        assert predict(problem, number)[0].family is named("b2b_gemm_2x")


def test_what_a_block_lacks_is_said_of_the_architecture_that_lacks_it() -> None:
    problem = _problem(16384, 256, (256, 64))
    assert [shortage(problem, get(number)) for number in (80, 90)] == [None, None]
    assert str(shortage(problem, get(75))).endswith("of which sm_75 has 64")
