"""One rule for each operator and the opset that changed its form: RULES[op, opset] converts a node
of the previous form.

The changes are listed in onnx's docs/Changelog.md; where that leaves a question open, ONNX
Runtime's kernels decide. A rule raises Obstacle if a node has no equivalent in the newer form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from onnxbolt.graph.lift.edit import Edit, Obstacle

Rule = Callable[[Edit], None]
# at opset 13, as input 1
_ATTRIBUTES = {"ReduceSum": "axes", "Split": "split", "Squeeze": "axes", "Unsqueeze": "axes"}


def _dropping(attribute: str) -> Rule:
    """A rule that removes an attribute without a meaning."""

    def rule(edit: Edit) -> None:
        edit.take(attribute)

    return rule


def _unchanged(edit: Edit) -> None:
    """The node unchanged: ONNX Runtime has no kernels for the types that the newer form lacks."""


def _broadcast(edit: Edit) -> None:
    """Opset 7: A op B, where B was placed at `axis` of A, else at its end -> numpy's
    broadcasting, which aligns the ends."""
    axis, used = edit.take("axis"), edit.take("broadcast", 0)
    if not used or axis is None:
        return
    rank, b = (len(edit.scope.shape(name)) for name in edit.node.input)
    behind = rank - axis % rank - b
    if behind > 0:
        edit.node.input[1] = edit.put(
            "Unsqueeze", [edit.node.input[1]], axes=list(range(b, b + behind))
        )


def _prelu(edit: Edit) -> None:
    """Opset 7: one slope per channel -> slopes that broadcast over [N, C, ...]."""
    x, slope = edit.node.input
    sizes = edit.scope.shape(slope)
    if len(sizes) != 1 or sizes[0] == 1:
        return
    if sizes[0] is None:
        raise Obstacle("the size of its slope is not known")
    if (behind := len(edit.scope.shape(x)) - 2) > 0:
        edit.node.input[1] = edit.put("Unsqueeze", [slope], axes=list(range(1, 1 + behind)))


def _testing(edit: Edit) -> None:
    """Opset 7: is_test=1 -> the only mode."""
    if not edit.take("is_test", 0):
        raise Obstacle("it is in training mode (is_test is 0)")


def _upsample_scales(edit: Edit) -> None:
    """Opset 7: scales of height and width -> scales of all axes."""
    edit.set(scales=[1.0, 1.0, edit.take("height_scale"), edit.take("width_scale")])


def _batch_normalization_spatial(edit: Edit) -> None:
    """Opset 9: spatial=0, statistics of shape [C, ...] -> (x - mean) / sqrt(var + epsilon) *
    scale + bias."""
    if edit.take("spatial", 1):
        return
    if any(edit.node.output[1:]):
        raise Obstacle("it is in training mode (it outputs statistics)")
    x, scale, bias, mean, variance = edit.node.input
    epsilon = edit.constant(edit.take("epsilon", 1e-5), edit.scope.dtype(variance))
    deviation = edit.put("Sqrt", [edit.put("Add", [variance, epsilon])])
    normal = edit.put("Div", [edit.put("Sub", [x, mean]), deviation])
    scaled = edit.put("Mul", [normal, scale])
    edit.node.op_type = "Add"
    del edit.node.input[:], edit.node.attribute[:], edit.node.output[1:]
    edit.node.input.extend([scaled, bias])


def _upsample_input(edit: Edit) -> None:
    """Opset 9: scales -> an input."""
    edit.node.input.append(edit.constant(edit.take("scales"), np.float32))


def _dropout_mask(edit: Edit) -> None:
    """Opset 10: a mask of the type of x -> of booleans."""
    if len(edit.node.output) > 1 and edit.node.output[1]:
        edit.follow(
            "Cast", 1, to=int(helper.np_dtype_to_tensor_dtype(edit.scope.dtype(edit.node.input[0])))
        )


def _slice(edit: Edit) -> None:
    """Opset 10: starts, ends, axes -> inputs."""
    lists = [edit.take(name) for name in ("starts", "ends", "axes")]
    edit.node.input.extend(edit.constant(values) for values in lists if values is not None)


def _topk(edit: Edit) -> None:
    """Opset 10: k -> an input."""
    edit.node.input.append(edit.constant([edit.take("k")]))


def _upsample_resize(edit: Edit) -> None:
    """Opset 10: Upsample -> Resize; scales must be at least 1, so that the nearest element is the
    previous one."""
    edit.node.op_type = "Resize"
    edit.set(nearest_mode="floor")


def _clip(edit: Edit) -> None:
    """Opset 11: min, max -> inputs."""
    bounds = [edit.take(name) for name in ("min", "max")]
    while bounds and bounds[-1] is None:
        bounds.pop()
    dtype = edit.scope.dtype(edit.node.input[0]) if bounds else None
    edit.node.input.extend(
        "" if bound is None else edit.constant(_within(bound, dtype), dtype) for bound in bounds
    )


def _within(bound: float, dtype: np.dtype | None) -> float:
    """The default bounds are fp32's largest numbers; for fp16 they are out of range, and bound
    nothing."""
    return (
        bound
        if dtype != np.float16 or abs(bound) <= np.finfo(np.float16).max
        else float(np.copysign(np.inf, bound))
    )


def _pad(edit: Edit) -> None:
    """Opset 11: pads, value -> inputs."""
    edit.node.input.append(edit.constant(edit.take("pads")))
    if value := edit.take("value", 0.0):
        edit.node.input.append(edit.constant(value, edit.scope.dtype(edit.node.input[0])))


def _resize(edit: Edit) -> None:
    """Opset 11: output i is at i / scale of the input, as before; the nearest element is now stated
    to be the previous or the next one."""
    mode, nearest = edit.take("mode", "nearest"), edit.take("nearest_mode")
    if mode == "nearest" and nearest is None:
        nearest = _nearest(edit.scope.values(edit.node.input[1]))
    edit.set(
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        **({"nearest_mode": nearest} if nearest else {}),
    )
    edit.node.input.insert(1, edit.constant([], np.float32))  # roi


def _nearest(scales: np.ndarray | None) -> str:
    """ONNX Runtime takes the previous element if an axis grows, and the next one if it shrinks."""
    if scales is None:
        raise Obstacle(
            "its scales are computed at run time, and they decide which element is the nearest"
        )
    if np.all(scales >= 1):
        return "floor"
    if np.all(scales <= 1):
        return "ceil"
    raise Obstacle("it enlarges one axis and shrinks another")


def _scatter(edit: Edit) -> None:
    """Opset 11: Scatter -> ScatterElements."""
    edit.node.op_type = "ScatterElements"


def _dropout_ratio(edit: Edit) -> None:
    """Opset 12: ratio, which matters only in training -> an input."""
    ratio = edit.take("ratio")
    if ratio is not None:
        edit.node.input.append(edit.constant(ratio, np.float32))


def _attribute_to_input(edit: Edit) -> None:
    """Opset 13: the attribute -> input 1."""
    values = edit.take(_ATTRIBUTES[edit.node.op_type])
    if values is not None:
        edit.node.input.append(edit.constant(values))


def _softmax(edit: Edit) -> None:
    """Opset 13: all axes from `axis` on as one -> a single axis; between a Flatten and a Reshape if
    there are several."""
    axis, x = edit.take("axis", 1), edit.node.input[0]
    try:
        shape = edit.scope.shape(x)
    except Obstacle:
        shape = []
    first = axis % len(shape) if shape else 0
    wide = [index for index in range(first, len(shape)) if shape[index] != 1]
    if shape and len(wide) <= 1:
        edit.set(axis=wide[0] if wide else first)
        return
    shape_of_x, flat = edit.put("Shape", [x]), edit.put("Flatten", [x], axis=axis)
    edit.set(axis=1)
    edit.node.input[0] = flat
    edit.follow("Reshape", 0, shape_of_x)


RULES: dict[tuple[str, int], Rule] = {
    **{
        (op, 7): _broadcast
        for op in (
            "Add",
            "And",
            "Div",
            "Equal",
            "Greater",
            "Less",
            "Mul",
            "Or",
            "Pow",
            "Sub",
            "Xor",
        )
    },
    **{(op, 7): _testing for op in ("BatchNormalization", "Dropout")},
    **{(op, 7): _dropping("output_sequence") for op in ("GRU", "LSTM", "RNN")},
    ("Gemm", 7): _dropping("broadcast"),  # C lay at the end already
    ("PRelu", 7): _prelu,
    ("Upsample", 7): _upsample_scales,
    ("BatchNormalization", 9): _batch_normalization_spatial,
    ("Upsample", 9): _upsample_input,
    ("Dropout", 10): _dropout_mask,
    ("Slice", 10): _slice,
    ("TopK", 10): _topk,
    ("Upsample", 10): _upsample_resize,
    ("Clip", 11): _clip,
    ("Pad", 11): _pad,
    ("Resize", 11): _resize,
    ("Scatter", 11): _scatter,
    ("Dropout", 12): _dropout_ratio,
    **{(op, 13): _attribute_to_input for op in _ATTRIBUTES},
    **{(op, 13): _softmax for op in ("Hardmax", "LogSoftmax", "Softmax")},
    ("Erf", 13): _unchanged,
}
