"""Pad by zeros in front of a Conv  =  Conv with these pads: TensorFlow's ZeroPadding2D, and
strided convolutions of its exporters."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import auto_pad, constant_values, remove, scalar, sole_use


def run(graph: gs.Graph) -> int:
    """Move Pads that only a Conv reads into the Conv's pads; returns how many."""
    return sum(
        _into_conv(graph, node)
        for node in list(graph.nodes)
        if node.op == "Pad" and not node.domain
    )


def _into_conv(graph: gs.Graph, node: gs.Node) -> bool:
    conv, pads = sole_use(graph, node.outputs[0]), _pads(node)
    if (
        conv is None
        or conv.op != "Conv"
        or conv.domain
        or conv.inputs[0] is not node.outputs[0]
        or pads is None
    ):
        return False
    spatial = pads[:, 2:].reshape(-1).tolist()
    if pads[:, :2].any() or auto_pad(conv) not in ("NOTSET", "VALID"):
        return False
    before = conv.attrs.get("pads") if auto_pad(conv) == "NOTSET" else None
    attributes = {name: value for name, value in conv.attrs.items() if name != "auto_pad"}
    conv.attrs = attributes | {
        "pads": [a + b for a, b in zip(spatial, before or [0] * len(spatial), strict=True)]
    }
    conv.origin, conv.inputs[0] = None, node.inputs[0]
    conv.provenance = tuple(dict.fromkeys((*node.provenance, *conv.provenance)))
    remove(graph, [node])
    return True


def _pads(node: gs.Node) -> np.ndarray | None:
    """The zeros that a Pad adds to each axis, [begin and end, rank]; None if it does something
    else, or if its inputs are unknown."""
    constants = [constant_values(tensor) for tensor in node.inputs[1:2]]
    pads = constants[0] if constants else None
    value = scalar(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].name else 0.0
    if (
        pads is None
        or value != 0
        or len(node.inputs) > 3
        or (pads < 0).any()
        or node.attrs.get("mode", "constant") != "constant"
    ):
        return None
    return pads.reshape(2, -1)
