"""Models with their products of codes fused, and what they then have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from onnx import ModelProto

from onnxbolt import optimize
from onnxbolt.graph.importer import load_model


def fused(model: ModelProto, folder: Path, precision: str = "keep") -> ModelProto:
    """The model as `optimize` writes it, without a library."""
    out = folder / "out.onnx"
    optimize(
        model, out, library=False, verify=False, archs=("sm_90a",), fuse="all", precision=precision
    )
    return load_model(out)


def types(model: ModelProto) -> Counter[str]:
    """How many nodes there are of each type."""
    return Counter(node.op_type for node in model.graph.node)
