"""Function bodies of attention in plain ONNX Runtime against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxbolt.dtypes import DType
from onnxbolt.ops.attention.found import Band, Masked, Masking
from tests.ops.attention_cases import ORDERS, Case

TYPES = (DType.F32, DType.F16, DType.BF16)
# error that roundings to the type may leave in an answer of about 1
TOLERANCES = {DType.F32: 1e-5, DType.F16: 1e-2, DType.BF16: 2e-2}
CROSS = Case(queries=6, keys=9, value_size=16)
GROUPED = Case(order="packed", heads=6, key_heads=2)
MASK_SHAPES = ((9,), (6, 9), (6, 1), (2, 1, 1, 9), (1, 4, 6, 9), (2, 1, 6, 9), (2, 4, 6, 9))
BANDS = (Band(None, 0), Band(None, 0, True), Band(-2, 1), Band(-1, None, True), Band(8, None))


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def check(case: Case) -> None:
    drawn = case.draw()
    (y,) = session(case.model()).run(None, drawn)
    tolerance = TOLERANCES[case.dtype]
    np.testing.assert_allclose(y, case.answer(drawn), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ORDERS)
def test_operands_lie_in_any_order(order: str, dtype: DType) -> None:
    check(Case(order, dtype=dtype))


@pytest.mark.parametrize("axes", [(3, 3, 8), (9, 8), (3, 24)])
def test_rows_may_have_several_axes(axes: tuple[int, ...]) -> None:
    """As exporters divide packed projections before they transpose them."""
    case = Case("packed", heads=3, key_heads=3)
    model, drawn = case.model(), case.draw()
    (node,) = (each for each in model.graph.node if each.name == "the node")
    (name,) = dict.fromkeys(node.input)
    shape = numpy_helper.from_array(np.array([0, 0, *axes]), "axes")
    model.graph.initializer.append(shape)
    model.graph.node.insert(0, helper.make_node("Reshape", [name, "axes"], ["divided"]))
    node.input[:] = ["divided"] * len(node.input)
    (y,) = session(model).run(None, drawn)
    np.testing.assert_allclose(y, case.answer(drawn), rtol=1e-5, atol=1e-5)


def test_values_may_have_an_axis_of_heads_of_any_number() -> None:
    check(Case("mixed", heads=3, key_heads=3))
    check(Case("mixed", heads=16, key_heads=16, size=4, value_size=4))


@pytest.mark.parametrize("order", ["rows", "by heads", "mixed"])
def test_keys_and_values_differ_in_length_and_size(order: str) -> None:
    check(replace(CROSS, order=order))


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("order", ["rows", "by heads", "mixed", "packed", "keys with values"])
def test_heads_share_keys_and_values(order: str, joined: bool) -> None:
    check(replace(GROUPED, order=order, joined=joined))


@pytest.mark.parametrize("order", ["rows", "by heads", "mixed", "keys with values"])
def test_batches_share_keys_and_values(order: str) -> None:
    check(Case(order, batch=3, batch_of_keys=1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("masked", Masked)
@pytest.mark.parametrize("masking", [Masking.KEPT, Masking.DROPPED])
def test_rows_without_keys_answer_in_three_modes(
    masking: Masking, masked: Masked, dtype: DType
) -> None:
    case = replace(CROSS, masking=masking, masked=masked, mask_shape=(2, 4, 6, 9), dtype=dtype)
    check(case)
    drawn, answer = case.draw(), case.answer(case.draw())
    assert np.isnan(answer).any() == (masked is Masked.NAN)
    assert np.any(np.all(drawn["mask"] == (masking is Masking.DROPPED), axis=-1))


@pytest.mark.parametrize("shape", MASK_SHAPES)
@pytest.mark.parametrize("masking", [Masking.ADDED, Masking.KEPT, Masking.DROPPED])
def test_masks_broadcast(masking: Masking, shape: tuple[int, ...]) -> None:
    check(replace(CROSS, masking=masking, mask_shape=shape))


@pytest.mark.parametrize("masked", Masked)
@pytest.mark.parametrize(
    ("dtype", "mask_type"),
    [(DType.F16, DType.F16), (DType.F16, DType.F32), (DType.BF16, DType.BF16)],
)
def test_masks_are_added_in_the_wider_type(dtype: DType, mask_type: DType, masked: Masked) -> None:
    check(
        replace(
            CROSS,
            masking=Masking.ADDED,
            masked=masked,
            mask_shape=(2, 1, 6, 9),
            dtype=dtype,
            mask_type=mask_type,
        )
    )


@pytest.mark.parametrize("lengths", [(6, 9), (9, 6)])
@pytest.mark.parametrize("masked", Masked)
@pytest.mark.parametrize("band", BANDS)
def test_bands_exclude_keys(band: Band, masked: Masked, lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    check(Case(queries=queries, keys=keys, band=band, masked=masked))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("masking", [Masking.ADDED, Masking.KEPT, Masking.DROPPED])
def test_a_band_and_a_mask_exclude_keys(masking: Masking, dtype: DType) -> None:
    masked = Masked.PLAIN if masking is Masking.ADDED else Masked.ZERO
    check(
        replace(
            CROSS,
            masking=masking,
            masked=masked,
            mask_shape=(2, 1, 1, 9),
            band=Band(-3, 2),
            dtype=dtype,
        )
    )


def test_a_band_excludes_beneath_any_finite_mask() -> None:
    """An fp32 mask of -1e30 still counts for more than a key outside of the band."""
    case = replace(
        CROSS,
        masking=Masking.ADDED,
        mask_shape=(9,),
        band=Band(None, 0),
        dtype=DType.F16,
    )
    drawn = case.draw()
    drawn["mask"] -= 1e30
    session = onnxruntime.InferenceSession(
        case.model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, drawn)
    _, _, v = case.operands(drawn)
    np.testing.assert_allclose(y[:, 0], v[:, :, 0].reshape(2, -1), rtol=1e-2, atol=1e-2)


def test_unscaled_products_may_be_too_large_for_fp16() -> None:
    case = replace(CROSS, dtype=DType.F16, size=64, value_size=8, scale=1e-4)
    drawn = {name: values * 60 for name, values in case.draw().items() if name != "v"}
    drawn["v"] = case.draw()["v"]
    session = onnxruntime.InferenceSession(
        case.model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, drawn)
    q, k, _ = case.operands(drawn)
    assert np.abs(q @ k.swapaxes(2, 3)).max() > np.finfo(np.float16).max
    np.testing.assert_allclose(y, case.answer(drawn), rtol=2e-2, atol=2e-2)
