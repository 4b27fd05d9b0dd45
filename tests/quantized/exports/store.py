"""Samples for the models, and the folder of their graphs."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

FOLDER = Path(__file__).parent / "graphs"
VERSIONS = FOLDER / "versions.json"
SHAPES = {"cnn": (2, 3, 16, 16), "mlp": (8, 16)}
_SAMPLES = 4


def floats(name: str) -> Path:
    """The model of floats."""
    return FOLDER / f"{name}.float.onnx"


def samples(name: str) -> Iterator[np.ndarray]:
    """Random inputs, the same ones each time."""
    rng = np.random.default_rng(0)
    for _ in range(_SAMPLES):
        yield rng.standard_normal(SHAPES[name]).astype(np.float32)


def write(model: onnx.ModelProto | Path, name: str) -> None:
    """Store a model without what only a debugger reads."""
    made = onnx.load(model) if isinstance(model, Path) else model
    del made.metadata_props[:]
    for part in (made.graph, *made.graph.node, *made.graph.input, *made.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del made.graph.value_info[:]
    for tensor in made.graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]
    onnx.save(made, FOLDER / f"{name}.onnx")


def tell(tool: str, *packages: str) -> None:
    """Keep the releases that wrote a tool's graphs."""
    known = json.loads(VERSIONS.read_text()) if VERSIONS.exists() else {}
    known[tool] = {package: importlib.metadata.version(package) for package in packages}
    VERSIONS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
