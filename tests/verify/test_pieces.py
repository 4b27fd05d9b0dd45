"""Attention with many scores is analysed in pieces, which take little memory."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention import pieces
from onnxbolt.ops.attention.found import Band, Masked, Masking
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.verify.bounds import Bounded
from onnxbolt.verify.limits import Arithmetic
from onnxbolt.verify.rules import Analysis, Env
from onnxbolt.verify.standard import Standard
from tests.ops.attention_cases import ORDERS, Case

CROSS = Case(batch=3, queries=6, keys=9, value_size=16, masking=Masking.KEPT, mask_shape=(6, 9))
SWIN = Case("packed", batch=12, queries=6, keys=6, windows=Windows(4, 6, 2, 3, 1, 2))
CASES = {
    **{order: Case(order, batch=3) for order in ORDERS},
    **{
        f"{order}, {list(shape)}": replace(CROSS, order=order, mask_shape=shape)
        for order in ("rows", "by heads", "mixed")
        for shape in ((9,), (6, 9), (3, 1, 1, 9), (1, 4, 6, 9), (3, 4, 6, 9))
    },
    "grouped": Case("keys with values", key_heads=2, batch=3),
    "keys of one batch": Case("by heads", batch=3, batch_of_keys=1),
    "causal": Case(queries=6, keys=9, band=Band(None, 0)),
    "causal at the end": Case(queries=6, keys=9, band=Band(None, 0, at_end=True)),
    "a band": Case(queries=9, keys=6, band=Band(-3, 1, at_end=True), masked=Masked.NAN),
    "apart": Case(joined=False),
    "windows": SWIN,
    "windows, masked": replace(SWIN, masking=Masking.ADDED, mask_shape=(4, 4, 6, 6), period=4),
    "a mask with a period": replace(CROSS, batch=6, mask_shape=(2, 1, 6, 9), period=2),
}


def analysed(case: Case) -> Bounded:
    """A case's result with its bounds."""
    model, drawn = case.model(), case.draw()
    (node,) = (node for node in model.graph.node if node.domain == DOMAIN)
    env: Env = {name: Bounded.of(values, 2.0**-11) for name, values in drawn.items()}
    functions = {function.name: function for function in model.functions}
    Analysis(Standard(onnx.ModelProto.FromString(model.SerializeToString())), functions).run(
        [node], env, Arithmetic()
    )
    return env["y"]


@functools.cache
def _whole(name: str) -> Bounded:
    return analysed(CASES[name])


@pytest.mark.parametrize("most", [20, 300])
@pytest.mark.parametrize("name", CASES)
def test_pieces_are_parts_of_the_whole(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _whole(name)
    monkeypatch.setattr(pieces, "_MOST_SCORES", most)
    found = analysed(CASES[name])
    np.testing.assert_allclose(found.value, whole.value, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found.value, CASES[name].answer(CASES[name].draw()), atol=1e-6)
    for ours, theirs in zip(found.errors, whole.errors, strict=True):
        np.testing.assert_allclose(ours, whole.absolute(theirs), rtol=1e-4)


def test_long_sequences_take_little_memory() -> None:
    """Two times 2 GB if it were analysed as a whole."""
    case = Case(batch=1, heads=4, key_heads=4, queries=2500, keys=2500)
    tracemalloc.start()
    analysed(case)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e9
