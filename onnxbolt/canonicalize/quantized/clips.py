"""Move a Clip of codes in front of the quantization, as QAT with a narrow range writes it
(Brevitas: QuantizeLinear, Clip to [-127, 127], DequantizeLinear):

    Clip(Q(x), l, h) = Q(Clip(x, DQ(l), DQ(h))),   Clip(Q(x), l, h) = Q(x) if all codes are between

Rounding and saturation are monotone, so that both are equal whenever DQ(l) and DQ(h) have the codes
l and h, which is looked up. The Clip of values is an epilogue step like any other.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import (
    INTEGERS,
    Scaling,
    is_quantize,
    new_tensor,
    scaling_of,
)
from onnxbolt.graph.edit import (
    add_constant,
    insert,
    optional,
    producer,
    remove,
    scalar,
    sole_use,
    together,
)


def run(graph: gs.Graph) -> int:
    """Move or remove all such Clips; returns how many."""
    clips = [node for node in graph.nodes if node.op == "Clip" and not node.domain]
    with together(graph):
        return sum(_rewrite(graph, clip) for clip in clips)


def _rewrite(graph: gs.Graph, clip: gs.Node) -> bool:
    quantize = producer(clip.inputs[0])
    if quantize is None or not is_quantize(quantize) or sole_use(graph, clip.inputs[0]) is None:
        return False
    scaling = scaling_of(quantize)
    if scaling is None or scaling.code not in INTEGERS or scaling.axis is not None:
        return False
    limits = np.iinfo(scaling.code)
    low, high = _bound(clip, 1, int(limits.min)), _bound(clip, 2, int(limits.max))
    if low is None or high is None or low > high or scaling.scale.dtype != np.float32:
        return False
    (x, *numbers), (y,) = quantize.inputs, clip.outputs
    if (low, high) != (limits.min, limits.max):
        bounds = _values(scaling, [low, high])
        if bounds is None:
            return False
        clipped = new_tensor(graph, f"{x.name}_clipped", x.dtype, x.shape)
        constants = [
            add_constant(graph, f"{y.name}_{word}", np.array(value, np.float32))
            for word, value in zip(("low", "high"), bounds, strict=True)
        ]
        insert(graph, "Clip", [x, *constants], [clipped], [clip], at=quantize)
        x = clipped
    insert(graph, quantize.op, [x, *numbers], [y], [quantize, clip], quantize.attrs, at=quantize)
    remove(graph, [quantize, clip])
    return True


def _bound(clip: gs.Node, index: int, default: int) -> int | None:
    """A constant bound, `default` if there is none; None if it is computed at run time."""
    tensor = optional(clip.inputs, index)
    if tensor is None:
        return default
    value = scalar(tensor)
    return None if value is None else int(value)


def _values(scaling: Scaling, codes: list[int]) -> np.ndarray | None:
    """The values of codes; None if these have other codes."""
    values = scaling.dequantized(np.array(codes, scaling.code))
    return values if scaling.quantized(values).tolist() == codes else None
