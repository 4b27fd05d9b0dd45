"""Attention inside ONNX Runtime: which arguments the op hands to kernels, proven by kernels for the
CPU against float64."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxbolt.families import named
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention.found import Band, Masked, Masking
from onnxbolt.opspec import OpSpec
from tests import library_fixtures as fx
from tests.ops.attention_cases import ORDERS, Case

FAMILY = named("attention")
CROSS = Case(batch=3, queries=6, keys=9, value_size=16)
GROUPED = Case(order="packed", heads=6, key_heads=2)
SWIN = Case(batch=8, queries=6, keys=6, windows=Windows(4, 6, 2, 3, 1, 2))
MASKED = replace(CROSS, masking=Masking.KEPT, mask_shape=(9,))
MASKS: dict[Masking, list[tuple[int, ...]]] = {
    Masking.KEPT: [(9,), (6, 9), (6, 1), (1,), (3, 1, 1, 9), (1, 4, 6, 9), (3, 4, 6, 9)],
    Masking.DROPPED: [(3, 1, 6, 9)],
    Masking.ADDED: [(9,), (3, 1, 6, 9), (4, 1, 9), (3, 4, 6, 9)],
}
CASES = {
    **{f"{order}": Case(order) for order in ORDERS},
    **{
        f"cross {order}": replace(CROSS, order=order, joined=order != "mixed")
        for order in ("rows", "by heads", "mixed")
    },
    **{
        f"grouped {order}": replace(GROUPED, order=order)
        for order in ("rows", "by heads", "mixed", "packed", "keys with values")
    },
    **{
        f"keys of one batch, {order}": Case(order, batch=3, batch_of_keys=1)
        for order in ("rows", "by heads", "keys with values")
    },
    **{
        f"{masking.value} {list(shape)}": replace(CROSS, masking=masking, mask_shape=shape)
        for masking, shapes in MASKS.items()
        for shape in shapes
    },
    **{
        f"masked {masked.value}": replace(
            CROSS, masking=Masking.DROPPED, mask_shape=(3, 4, 6, 9), masked=masked
        )
        for masked in Masked
    },
    **{
        f"windows {order}": replace(SWIN, order=order)
        for order in ("rows", "packed", "interleaved", "keys with values")
    },
    "windows, one axis for pixels": replace(SWIN, image_axes=1),
    "windows, masked": replace(
        SWIN, masking=Masking.ADDED, mask_shape=(4, 4, 6, 6), period=4, order="packed"
    ),
    "a mask with a period": replace(
        CROSS, batch=6, masking=Masking.KEPT, mask_shape=(3, 1, 6, 9), period=3
    ),
    "added -inf": replace(
        CROSS, masking=Masking.ADDED, mask_shape=(3, 1, 6, 9), masked=Masked.ZERO
    ),
    "causal": Case(queries=6, keys=9, band=Band(None, 0)),
    "causal at the end": Case(queries=6, keys=9, band=Band(None, 0, True)),
    "a band": Case(queries=9, keys=6, band=Band(-3, 1), masked=Masked.NAN),
    "a band at the end, and a mask": replace(MASKED, band=Band(-2, None, True), masked=Masked.ZERO),
}


class FusedAttention(fx.Fused):
    """The op type of a case."""

    def __init__(self, case: Case) -> None:
        self.family, self.body, self.fields = FAMILY, case.body, {}
        self.spec = OpSpec.of(case.signature, self.body.name)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    ops = {op.spec.name: op for op in map(FusedAttention, CASES.values())}
    path = tmp_path_factory.mktemp("library") / "attention.onnxbolt.so"
    return fx.host_library(path, list(ops.values()))


@pytest.fixture(autouse=True)
def usual(library: fx.HostLibrary) -> Iterator[None]:
    """Kernels take everything."""
    library.machine()
    yield
    library.limit()


def session(
    case: Case,
    library: fx.HostLibrary,
    more: Mapping[str, object] | None = None,
    symbols: Mapping[str, Sequence[Any]] = {},
) -> ort.InferenceSession:
    """The case's node by itself, with further attributes."""
    model = case.model({"format": 1, "configs": fx.config(FAMILY).row(), **(more or {})}, symbols)
    return session_of(model, library)


def session_of(model: onnx.ModelProto, library: fx.HostLibrary) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library.path))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("name", CASES)
def test_kernels_get_what_the_node_says(name: str, library: fx.HostLibrary) -> None:
    case, before = CASES[name], library.launches
    drawn = case.draw()
    (y,) = session(case, library).run(None, drawn)
    assert library.launches == before + 1
    np.testing.assert_allclose(y, case.answer(drawn), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("packed", "cross mixed", "keys of one batch, rows", "kept [3, 4, 6, 9]", "kept [6, 9]"),
        *("windows packed", "windows, masked", "windows, one axis for pixels"),
    ],
)
def test_slices_of_batches(name: str, library: fx.HostLibrary) -> None:
    case, before = CASES[name], library.launches
    drawn = case.draw()
    together = case.windows.count if case.windows else 1
    library.limit(together)
    (y,) = session(case, library).run(None, drawn)
    assert library.launches == before + case.batch // together
    np.testing.assert_allclose(y, case.answer(drawn), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("rows", {"q": ["B", "S", 32]}, ["B", "S", 32]),
        ("packed", {"qkv": ["B", "S", 96]}, ["B", "S", 32]),
        ("by heads", {"q": ["B", 4, "S", 8]}, ["B", "S", 32]),
        ("cross mixed", {"q": ["B", 6, 32]}, ["B", 6, 4, 16]),
    ],
)
def test_shapes_follow_symbols(
    name: str, shapes: dict[str, list[Any]], expected: list[Any], library: fx.HostLibrary
) -> None:
    more = {"format": 1, "configs": fx.config(FAMILY).row()}
    model = CASES[name].model(more, shapes)
    model.graph.node.add(op_type="Identity", input=["y"], output=["z"])
    z = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(z)
    assert list(session_of(model, library).get_outputs()[0].shape) == expected


@pytest.mark.parametrize("name", ["rows", "cross mixed"])
def test_rows_are_chosen_by_queries_of_all_batches(name: str, library: fx.HostLibrary) -> None:
    """Heads apart or not: m is batch x queries, as in AttentionProblem.rows."""
    case = CASES[name]
    m = case.batch * case.queries
    rows = [
        fx.config(FAMILY, min_m=first, max_m=last).row()
        for first, last in ((0, m - 1), (m, m), (m + 1, 10 * m))
    ]
    table = {"configs": [number for row in rows for number in row]}
    session(case, library, table).run(None, case.draw())
    assert library.last_max_m == m


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rows", {"q": (2, 5, 40)}, None),
        ("rows", {"q": (2, 5, 24)}, r"q has shape [2,5,24], which lacks 4 heads"),
        ("rows", {"q": (10, 32)}, r"q has shape [10,32], expected [batch, positions, ..]"),
        ("by heads", {"q": (2, 3, 5, 8)}, r"q has shape [2,3,5,8], which lacks 4 heads"),
        ("by heads", {"k": (2, 4, 5, 4)}, r"have [8,4,8] elements, expected [8,8,8]"),
        ("by heads", {"v": (2, 4, 5, 4)}, r"have [8,8,4] elements, expected [8,8,8]"),
        ("rows", {"k": (2, 0, 32), "v": (2, 0, 32)}, "there are 0 keys and 0 values"),
        ("rows", {"v": (2, 6, 32)}, "there are 5 keys and 6 values"),
        (
            "rows",
            {"k": (3, 5, 32)},
            "input 1 has shape [3,5,32], which does not fit the batch of 2",
        ),
        (
            "rows",
            {"q": (1, 5, 32)},
            "input 1 has shape [2,5,32], which does not fit the batch of 1",
        ),
        ("kept [9]", {"mask": (6,)}, "mask has shape [6], which does not broadcast to [3,4,6,9]"),
        ("kept [6, 9]", {"mask": (9, 6)}, "mask has shape [9,6], which does not broadcast"),
        ("kept [9]", {"mask": (1, 1, 1, 1, 9)}, "mask has shape [1,1,1,1,9], which does not"),
        ("kept [9]", {"mask": (2, 1, 1, 9)}, "[2,1,1,9], which does not broadcast to [3,4,6,9]"),
        ("kept [9]", {"mask": (1, 2, 1, 9)}, "[1,2,1,9], which does not broadcast to [3,4,6,9]"),
    ],
)
def test_shapes_that_do_not_fit(
    name: str,
    changes: dict[str, tuple[int, ...]],
    message: str | None,
    library: fx.HostLibrary,
) -> None:
    case = CASES[name]
    drawn = case.draw()
    for tensor, shape in changes.items():
        drawn[tensor] = np.ones(shape, drawn[tensor].dtype)
    symbols = {tensor: [None] * values.ndim for tensor, values in drawn.items()}
    run = session(case, library, symbols=symbols).run
    if message is None:  # rows may be longer than their heads
        assert run(None, drawn)[0].shape == (2, 5, 32)
        return
    with pytest.raises(Exception, match=f"the node.*{re.escape(message)}"):
        run(None, drawn)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"heads": 0}, "attribute heads is missing or not positive"),
        ({"key_heads": 3}, "attribute key_heads does not divide heads"),
        ({"value_size": -1}, "attribute value_size is missing or not positive"),
        ({"masking": 4}, "attribute masking is 4, which this library does not know"),
        ({"masking": 2}, "attribute masking does not fit the inputs"),
        ({"masked": 3}, "attribute masked is 3, which this library does not know"),
        ({"band": [1, 2]}, "attribute band is damaged"),
        ({"q_view": [8, 0, 0, 4]}, "attribute q_view is damaged"),
        ({"q_view": [8, 0, 0, 5, 8]}, "attribute q_view is damaged"),
        ({"k_view": [8, 0, 1, 4, 9]}, "attribute k_view is damaged"),
        ({"windows": [1, 5, 1, 5]}, "attribute windows is damaged"),
        ({"windows": [1, 5, 1, 2, 0, 0]}, "attribute windows is damaged"),
        ({"windows": [1, 5, 1, 5, 0, 5]}, "attribute windows is damaged"),
        ({"mask_period": -1}, "attribute mask_period is negative"),
    ],
)
def test_damaged_attributes(
    attributes: dict[str, object], message: str, library: fx.HostLibrary
) -> None:
    with pytest.raises(Exception, match=message):
        session(CASES["by heads" if "key_heads" in attributes else "rows"], library, attributes)
