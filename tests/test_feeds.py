"""Inputs from files: damaged ones, strings, and kinds of inputs that no file can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxbolt.errors import InputError
from onnxbolt.verify import verify
from onnxbolt.verify.feeds import random_feeds, read_feeds
from onnxbolt.verify.session import CPU
from tests.test_verify import drawn, model_of


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_with_any_damage(save: Callable[..., None], tmp_path: Path) -> None:
    """Wherever eight bytes are overwritten: numbers that are others, or one clear error."""
    model = model_of("(float[2,4] x) => (float[2,4] y)", "y = Relu(x)")
    save(tmp_path / "x.npz", x=drawn(0, 2, 4))
    whole, found = (tmp_path / "x.npz").read_bytes(), set[str]()
    for start in range(0, len(whole), 2):
        (tmp_path / "x.npz").write_bytes(whole[:start] + b"(\xff" * 4 + whole[start + 8 :])
        try:
            read_feeds(tmp_path / "x.npz", model)
        except InputError as error:
            found.add(type(error.__cause__).__name__)
    assert {"BadZipFile", "ValueError"} <= found


def test_strings_from_a_file(tmp_path: Path) -> None:
    model = model_of("(string[N] x) => (bool[N] y)", "y = Equal(x, w)", opset=19)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(["a"], object), "w"))
    np.savez(tmp_path / "x.npz", x=np.array(["a", "bc"]))
    assert read_feeds(tmp_path / "x.npz", model)["x"].tolist() == ["a", "bc"]
    assert verify(model, model, inputs=tmp_path / "x.npz", providers=[CPU]).passed


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("seq(float[N])", "y = ConcatFromSequence<axis=0>(x)"),
        ("optional(float[N])", "y = OptionalGetElement(x)"),
    ],
)
def test_inputs_that_no_file_can_hold(kind: str, body: str, tmp_path: Path) -> None:
    model = model_of(f"({kind} x) => (float[N] y)", body)
    np.savez(tmp_path / "x.npz", x=np.zeros(2, np.float32))
    for inputs in (None, tmp_path / "x.npz"):
        with pytest.raises(
            InputError, match=r"input x is not a tensor \((sequence|optional)\).*verify=False"
        ):
            verify(model, model, inputs=inputs, providers=[CPU])


def test_a_single_array_has_no_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(0, 2, 4))
    with pytest.raises(InputError, match=r"it is an \.npy file"):
        read_feeds(tmp_path / "x.npy", model_of("(float[2,4] x) => (float[2,4] y)", "y = Relu(x)"))


def test_another_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"\x08\x08" * 8)
    with pytest.raises(InputError, match=r"not a readable \.npz file \(it is not a zip archive\)"):
        read_feeds(tmp_path / "x.npz", model_of("(float[2,4] x) => (float[2,4] y)", "y = Relu(x)"))


@pytest.mark.parametrize(
    "shape", ["8589934592,3,224,224", "4611686018427387904,3,8,8", "1,3,8589934592,8"]
)
def test_inputs_beyond_the_machine_s_memory_are_one_clear_error(shape: str) -> None:
    model = model_of(f"(float[{shape}] x) => (float y)", "y = ReduceSum<keepdims=0>(x)")
    with pytest.raises(
        InputError,
        match=r"input x has the shape \[\d+, 3, .*GiB of memory; correct the model's shape",
    ):
        random_feeds(model)
