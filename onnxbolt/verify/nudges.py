"""A model whose weights and inputs have moved by one rounding error each: how far its answers move
is how much they hang on rounding.

The original in another precision is one way of rounding; another order of the sums of a product is
another one, and the two may choose different ones of two equally good boxes. Both compute exactly
what the model answers for weights that lie a few rounding errors away (N. J. Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 3.1: backward error analysis).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import ModelProto, numpy_helper

from onnxbolt.graph import weights
from onnxbolt.graph.inlining import with_inner
from onnxbolt.verify.feeds import Feeds

DRAWS = 4  # random signs: two nearly equal values change places in half of them
_FROM = 16  # elements; sizes and scales are computed from smaller tensors
# scales that operators on codes multiply and divide to one number, each of which is rounded
_ROUNDED = 3
# the input with the scale of the result of operators that make codes
_SCALES = {
    "QGemm": 7,
    "QLinearAdd": 6,
    "QLinearAveragePool": 3,
    "QLinearConcat": 0,
    "QLinearConv": 6,
    "QLinearGlobalAveragePool": 3,
    "QLinearLeakyRelu": 3,
    "QLinearMatMul": 6,
    "QLinearMul": 6,
    "QLinearSigmoid": 3,
    "QLinearWhere": 7,
    "QuantizeLinear": 1,
}


def nudged(model: ModelProto, unit: float, seed: int) -> ModelProto:
    """A copy of `model` whose weights have moved by `unit` relative to their values, up or down,
    and the scales of codes that are made to a next number of fp32: a value in the middle of two
    codes then has the other one.

    Large weights in files stay, since a copy would hold them in memory. So do values that bfloat16
    has, because rounding moves no masks, steps of grids and other small integers.
    """
    copy, rng = ModelProto(), np.random.default_rng(seed)
    copy.CopyFrom(model)
    scales = {
        node.input[_SCALES[node.op_type]]: 1 if node.op_type == "QuantizeLinear" else _ROUNDED
        for node in with_inner(model.graph.node)
        if len(node.input) > _SCALES.get(node.op_type, len(node.input))
    }
    for tensor in copy.graph.initializer:
        if weights.is_apart(tensor):
            continue
        values = numpy_helper.to_array(tensor)
        if np.prod(tensor.dims) >= _FROM:
            moved = _moved(values, unit, rng) if values.dtype.kind in "fV" else values
        elif tensor.name in scales and values.dtype == np.float32:
            end = np.float32(rng.choice([0.0, np.inf]))
            moved = values
            for _ in range(scales[tensor.name]):
                moved = np.asarray(np.nextafter(moved, end))
        else:
            continue
        if moved is not values:
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return copy


def nudged_feeds(feeds: Feeds, unit: float, seed: int) -> Feeds:
    """Inputs whose float values have moved as those of `nudged`."""
    rng = np.random.default_rng(seed)
    return {
        name: _moved(values, unit, rng) if values.dtype.kind in "fV" else values
        for name, values in feeds.items()
    }


def _moved(values: np.ndarray, unit: float, rng: np.random.Generator) -> np.ndarray:
    """`values`, each times 1 - unit or 1 + unit, in its type and its range; themselves if all
    stay, as those of 4 and 8 bits do."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        moved = (wide * (1 + unit * rng.choice([-1.0, 1.0], wide.shape))).astype(values.dtype)
        exact = wide.astype(ml_dtypes.bfloat16).astype(np.float64) == wide
    stays = exact | ~np.isfinite(moved.astype(np.float64))
    return values if stays.all() else np.where(stays, values, moved)
