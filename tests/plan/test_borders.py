"""Which convolutions write what leaves channels last, by the predicted times."""
from __future__ import annotations

import pytest

from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem
from onnxbolt.plan import borders
from onnxbolt.plan.cost import predict
from onnxbolt.plan.problems import describe_problem
from tests.support import Net, fused, ops


@pytest.mark.parametrize(("factor", "written"), [(0.5, True), (100.0, False)])
def test_a_convolution_does_it_where_that_is_faster(monkeypatch: pytest.MonkeyPatch, factor: float, written: bool) -> None:
    def slower(problem: ConvProblem, arch: int) -> tuple[object, float]:
        config, us = predict(problem, arch)
        return config, us * (factor if problem.y_nchw else 1.0)

    monkeypatch.setattr(borders, "predict", slower)
    net = Net({"x": (8, 64, 32, 32)})
    assert ops(fused(net.model(net.conv("x", 64, 8)), "fp16", arch=90))[-1].endswith("_to_nchw") is written


def test_the_problem_says_so() -> None:
    problem = ConvProblem(1, 8, 8, 64, 3, 1, 1, 8, 8, (0,) * 4, (1, 1), (1, 1), 1, DType.F16, DType.F32, ("Bias",), y_nchw=True)
    assert describe_problem(problem) == "conv 1x8x8x64 to 3, 1x1, to NCHW, f16 to f32, Bias"
