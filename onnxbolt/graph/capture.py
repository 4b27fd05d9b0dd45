"""The operators of a model that keep a run of it from being captured in a CUDA graph.

A captured run must not wait for the device. ONNX Runtime waits where the size of a tensor is known
on the device alone: that of an operator's output, or one that a node reads from a tensor that is
computed from the model's inputs. It refuses sessions with control flow and with nodes on the CPU by
itself; in a capture that fails half-way, it leaves the stream unusable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import ModelProto, NodeProto

from onnxbolt.domains import FUSED
from onnxbolt.graph.scopes import subgraphs

# operators whose outputs have as many elements as the data have it
_COUNTED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
# operators without a size or a kernel on the device: of sequences, optional values and texts
_OF_THE_HOST = ("Sequence", "Optional", "String", "SplitToSequence", "ConcatFromSequence")
# places of the inputs whose values the host reads, for the output's size or where to cut
_READ_BY_THE_HOST = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
_OF_SHAPES = frozenset({"Shape", "Size"})


def obstacle(model: ModelProto) -> str:
    """Why no run of `model` can be captured; empty if nothing in it says so."""
    weights = {tensor.name for tensor in model.graph.initializer}
    computed = {value.name for value in model.graph.input} - weights
    functions = [function.node for function in model.functions if function.domain != FUSED]
    for nodes in (model.graph.node, *functions):
        if reason := _of_nodes(nodes, computed):
            return reason
    return ""


def _of_nodes(nodes: Iterable[NodeProto], computed: set[str]) -> str:
    """`computed`: the tensors that are computed from the model's inputs; gets those of `nodes`."""
    for node in nodes:
        if node.domain == FUSED:
            computed.update(node.output)
            continue
        name = f"{node.op_type} {node.name}".strip()
        if any(True for attribute in node.attribute for _ in subgraphs(attribute)):
            return f"{name} decides at run time what runs"
        if node.op_type in _COUNTED:
            return f"the data decide the size of the output of {name}"
        if node.op_type.startswith(_OF_THE_HOST):
            return f"{name} runs on the CPU"
        places: Sequence[int] = _READ_BY_THE_HOST.get(node.op_type, ())
        for place in places:
            if place < len(node.input) and node.input[place] in computed:
                return f"{name} reads {node.input[place]}, which is computed on the device"
        if node.op_type not in _OF_SHAPES and computed.intersection(node.input):
            computed.update(node.output)
    return ""
