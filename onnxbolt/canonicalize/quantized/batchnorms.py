"""Fold a BatchNormalization behind a convolution of constant codes into their scales and the bias:

    BN(Conv(x, DQ(w, t)) + b) = Conv(x, DQ(w, s t)) + (s b + shift)

with s and shift of each channel as batchnorm.py has them. Tools that quantize a module's inputs and
weights, such as ModelOpt in PyTorch, leave it there, since the weight is no constant of floats.
Codes stay as they are. Scales of fp16 would round s, so that their BatchNormalization stays.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.affine import rounded, take_over
from onnxbolt.canonicalize.batchnorm import scale_and_shift
from onnxbolt.canonicalize.quantized.scaling import (
    DEQUANTIZE,
    Scaling,
    is_dequantize,
    new_tensor,
    scaling_of,
)
from onnxbolt.graph.edit import (
    add_constant,
    constant_values,
    insert,
    optional,
    producer,
    prune,
    sole_use,
)


def run(graph: gs.Graph) -> int:
    """Fold all that can be folded; returns how many."""
    nodes = [node for node in graph.nodes if node.op == "BatchNormalization" and not node.domain]
    count = sum(_fold(graph, node) for node in nodes)
    if count:
        prune(graph)  # DequantizeLinears that nobody reads any more
    return count


def _fold(graph: gs.Graph, node: gs.Node) -> bool:
    x, found = node.inputs[0], scale_and_shift(node)
    conv = producer(x)
    if found is None or conv is None or conv.op != "Conv" or conv.domain:
        return False
    weight = producer(conv.inputs[1])
    if weight is None or not is_dequantize(weight) or sole_use(graph, x) is not node:
        return False
    codes, scaling = weight.inputs[0], scaling_of(weight)
    bias = optional(conv.inputs, 2)
    old = np.zeros(1) if bias is None else constant_values(bias)
    if scaling is None or old is None or not _fits(codes, scaling):
        return False
    scale, shift = found
    scales = rounded(weight.inputs[1], scaling.scale.astype(np.float64) * scale)
    shifted = rounded(weight.inputs[1], old.astype(np.float64) * scale + shift)
    if scales is None or shifted is None or len(scale) != codes.shape[0]:
        return False
    zeros = np.array(np.broadcast_to(scaling.zero, scales.shape))
    numbers = [
        add_constant(graph, f"{weight.inputs[1].name}_scaled", scales),
        add_constant(graph, f"{codes.name}_zero_points", zeros),
    ]
    values = new_tensor(graph, f"{conv.inputs[1].name}_scaled", scales.dtype, codes.shape)
    insert(graph, DEQUANTIZE, [codes, *numbers], [values], [weight], {"axis": 0}, at=conv)
    base = codes if bias is None else bias
    conv.inputs = [conv.inputs[0], values, add_constant(graph, f"{base.name}_shifted", shifted)]
    take_over(graph, conv, node)
    return True


def _fits(codes: gs.Tensor, scaling: Scaling) -> bool:
    """True for constant codes with scales of fp32, for all or for each output channel."""
    constant = isinstance(codes, gs.Constant)
    return constant and scaling.scale.dtype == np.float32 and scaling.axis in (None, 0)
