"""Kernels for products of codes, which are not compiled, and calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxbolt.verify.feeds import random_feeds
from tests.quantized import kernels

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with kernels.registered():
        yield


@pytest.fixture
def calibration(tmp_path: Path) -> Write:
    """Writes batches of random inputs of a model to a directory."""

    def write(model: onnx.ModelProto, batches: int = 2) -> Path:
        folder = tmp_path / "data"
        folder.mkdir()
        for number in range(batches):
            np.savez(folder / f"{number}.npz", **random_feeds(model, number))  # type: ignore[arg-type]
        return folder

    return write
