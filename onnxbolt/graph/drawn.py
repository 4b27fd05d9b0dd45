"""Tensors that a model draws at random, so that two runs differ in them: samples of a variational
autoencoder, the noise of a speech model, what training leaves out."""

from __future__ import annotations

import onnx
from onnx import ModelProto

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
    """The tensors of the main graph that such an operator computes, those of Dropout in training
    among them."""
    return {
        name
        for node in model.graph.node
        if not node.domain and (node.op_type in OPERATORS or _leaves_out(node))
        for name in node.output
        if name
    }


def _leaves_out(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == "Dropout" and len(node.input) > 2 and node.input[2])
