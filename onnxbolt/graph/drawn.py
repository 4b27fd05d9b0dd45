"""Tensors that a model draws at random, so that two runs differ in them: samples of a variational
autoencoder, the noise of a speech model, what training leaves out."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from onnxbolt.graph.inlining import with_inner

OPERATORS = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def drawn(model: ModelProto) -> set[str]:
    """The tensors of the main graph that such an operator computes, itself or in a body of If, Loop
    or Scan; those of Dropout in training among them."""
    return {
        name
        for node in model.graph.node
        if any(map(_draws, with_inner([node])))
        for name in node.output
        if name
    }


def _draws(node: NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    leaves_out = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
    return node.op_type in OPERATORS or bool(leaves_out)
