"""The stored graphs, by name: MODEL.FORM, such as cnn.ort.qdq.u8s8.channel."""

from __future__ import annotations

from pathlib import Path

import onnx

FOLDER, SUFFIX = Path(__file__).parent / "graphs", ".onnx"


def names() -> list[str]:
    """All stored graphs."""
    return sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}"))


def graph(name: str) -> onnx.ModelProto:
    """The model of that name."""
    return onnx.load(FOLDER / f"{name}{SUFFIX}")
