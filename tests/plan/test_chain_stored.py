"""Predicted times of two products whose first result is stored as well, or has residuals,
against measurements on an H200 (fp16)."""

from __future__ import annotations

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.b2b_stored_sm90 import B2bStoredSm90Config
from onnxbolt.plan.cost import fused_us, predict
from onnxbolt.problems import GemmProblem

END = ("Bias", "Add", "Relu", "Store", "Gemm", "Bias", "Relu")


def problem(rows: int, k: int, stored: int, n: int, chain: tuple[str, ...] = END) -> GemmProblem:
    return GemmProblem(rows, n, k, DType.F16, DType.F16, chain, (stored,))


# microseconds by consumer warpgroups, of the deepest ring
MEASURED = (
    (problem(100352, 64, 256, 64), {3: 35.0, 2: 35.7, 1: 37.6}),
    (problem(100352, 64, 256, 128), {3: 40.2}),
    (problem(25088, 128, 512, 128), {3: 20.4, 2: 25.1, 1: 21.9}),
    (problem(6272, 256, 1024, 256), {1: 22.9}),
    (
        problem(50000, 96, 384, 128, ("Bias", "Relu", "Store", "Gemm", "Bias")),
        {3: 21.4, 2: 22.0, 1: 28.3},
    ),
)


@pytest.mark.parametrize(("measured", "times"), MEASURED)
def test_predictions_are_near_measurements(measured: GemmProblem, times: dict[int, float]) -> None:
    family = named("b2b_stored_sm90")
    found = {config.consumers: config for config in family.candidates(measured, get(90))}
    for consumers, us in times.items():
        assert 0.85 <= fused_us(measured, found[consumers], get(90)) / us <= 1.15
    best, _ = predict(measured, 90)
    assert isinstance(best, B2bStoredSm90Config)
    assert best.consumers == min(times, key=lambda consumers: times[consumers])


def test_where_the_weights_are_large_two_kernels_are_predicted_to_be_faster() -> None:
    for shape, together in (
        ((100352, 64, 256, 64), True),
        ((25088, 128, 512, 128), True),
        ((6272, 256, 1024, 256), False),
    ):
        whole = problem(*shape)
        assert (
            predict(whole, 90)[1] < sum(predict(layer, 90)[1] for layer in whole.layers)
        ) == together


RESIDUAL = tuple(step for step in END if step != "Store")
LINEAR = ("Bias", "Add", "Gemm", "Bias", "Relu")
# microseconds of one kernel and of two, one behind the other
COMPARED = (
    (problem(100352, 64, 256, 64, RESIDUAL), 22.4, 47.5),
    (problem(100352, 72, 24, 72, LINEAR), 16.8, 21.4),
    (problem(25088, 120, 40, 240, LINEAR), 11.1, 12.3),
    (problem(16384, 256, 64, 16, RESIDUAL), 5.1, 7.9),
    (problem(6272, 128, 256, 64, RESIDUAL), 5.0, 6.9),
    (problem(25088, 64, 128, 32, RESIDUAL), 5.6, 9.0),
    (problem(6272, 256, 1024, 256, RESIDUAL), 19.3, 17.0),
)


@pytest.mark.parametrize(("whole", "together", "apart"), COMPARED)
def test_a_residual_between_layers_is_fused_where_that_was_measured_to_be_faster(
    whole: GemmProblem, together: float, apart: float
) -> None:
    predicted = predict(whole, 90)[1]
    assert (predicted < sum(predict(layer, 90)[1] for layer in whole.layers)) == (together < apart)
    # rows of fewer than 128 bytes come slower than a copy's, for both sides
    assert 0.65 <= predicted / together <= 1.1
