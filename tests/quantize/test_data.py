"""Calibration data are read one file at a time; whatever is wrong with them is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.quantize.data import Data
from tests.support import Net

GOOD: dict[str, Any] = {"x": np.ones((2, 3, 4), np.float32)}
NOT_A_NUMBER = np.full((2, 3, 4), np.nan, np.float32)
FAULTS: dict[str, dict[str, Any]] = {
    "holds y; the model's inputs are x": {"y": GOOD["x"]},
    "x has the shape [2, 3], the model takes [N, 3, 4]": {"x": np.ones((2, 3), np.float32)},
    "x has the shape [2, 3, 5], the model takes": {"x": np.ones((2, 3, 5), np.float32)},
    "x is float64, the model takes float32": {"x": np.ones((2, 3, 4))},
    "x has values that are NaN or infinite": {"x": NOT_A_NUMBER},
    "x is empty: its shape is [0, 3, 4]": {"x": np.ones((0, 3, 4), np.float32)},
}


def _model() -> ModelProto:
    net = Net({"x": ("N", 3, 4)})
    return net.model(net.node("Relu", "x"))


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path: Path, fault: str) -> None:
    np.savez(tmp_path / "0.npz", **GOOD)
    np.savez(tmp_path / "1.npz", **FAULTS[fault])
    with pytest.raises(InputError) as raised:
        list(Data(tmp_path, _model()))
    assert str(raised.value).startswith(f"calibration='{tmp_path}/1.npz': ")
    assert fault in str(raised.value)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the directory has no \.npz files"):
        Data(tmp_path, _model())


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Data(tmp_path / "none.npz", _model())


def test_files_come_in_order_one_at_a_time(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.savez(tmp_path / f"{number:03}.npz", x=np.full((1, 3, 4), number, np.float32))
    (tmp_path / "notes.txt").write_text("no data")
    data = Data(tmp_path, _model())
    assert len(data) == 3
    assert [feeds["x"][0, 0, 0] for feeds in data] == [1, 2, 10]


def test_the_digest_is_that_of_the_arrays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **GOOD)
    np.savez(tmp_path / "c.npz", x=2 * GOOD["x"])
    one, same, other = (
        Data(tmp_path / f"{name}.npz", _model()).digest() for name in ("a", "b", "c")
    )
    assert one == same != other
