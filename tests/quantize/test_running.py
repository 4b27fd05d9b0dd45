"""Magnitudes of activations, measured in plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from onnxbolt.errors import InputError
from onnxbolt.options import METHODS
from onnxbolt.quantize import running
from onnxbolt.quantize.data import Data
from tests.support import Net

CHANNELS = 3


def _roots(opset: int = 17) -> ModelProto:
    """Roots of the rows of x that `kept` has."""
    shapes: dict[str, Sequence[int | str]] = {"x": ("N", CHANNELS), "kept": ("N",)}
    net = Net(shapes, opset=opset, types={"kept": TensorProto.BOOL})
    return net.model(net.node("Sqrt", net.node("Compress", "x", "kept", axis=0)))


def _data(folder: Path, model: ModelProto, x: np.ndarray, kept: int) -> Data:
    np.savez(folder / "0.npz", x=x.astype(np.float32), kept=np.arange(len(x)) < kept)
    return Data(folder, model)


@pytest.mark.parametrize("method", METHODS)
def test_a_number_that_is_none_is_found_within_a_model(method: str, tmp_path: Path) -> None:
    model, x = _roots(), np.ones((4, CHANNELS))
    x[1, 2] = -1
    with pytest.raises(InputError, match="tensor sqrt1 is not finite on these inputs"):
        running.magnitudes(model, {}, _data(tmp_path, model, x, 4), ["sqrt1"], method)


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_channels(opset: int, tmp_path: Path) -> None:
    model, x = _roots(opset), np.arange(4 * CHANNELS).reshape(4, CHANNELS) ** 2
    data = _data(tmp_path, model, x, 3)
    found = running.channel_magnitudes(model, {}, data, ["sqrt1"])
    assert found["sqrt1"].tolist() == [6, 7, 8]


def test_a_tensor_without_elements_has_the_magnitude_0(tmp_path: Path) -> None:
    model = _roots()
    data = _data(tmp_path, model, np.ones((4, CHANNELS)), 0)
    assert running.magnitudes(model, {}, data, ["sqrt1"], "minmax") == {"sqrt1": 0}
    assert running.channel_magnitudes(model, {}, data, ["sqrt1"])["sqrt1"].tolist() == [0] * 3


def test_few_numbers_beside_zeros_have_a_scale(tmp_path: Path) -> None:
    """The magnitude below which 99.999% lie is 0."""
    x = np.zeros((40_000, CHANNELS))
    x[0, 0] = 25
    model = _roots()
    data = _data(tmp_path, model, x, len(x))
    assert running.magnitudes(model, {}, data, ["sqrt1"], "percentile") == {"sqrt1": 5}
