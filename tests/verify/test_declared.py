"""The precision in the metadata chooses limits: it is held against the types of the model's
tensors."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxbolt.errors import InputError
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.declared import precision_of
from onnxbolt.verify.session import CPU
from tests.support import Net


@pytest.fixture(scope="module")
def source() -> ModelProto:
    net = Net({"x": (2, 16, 8, 8)})
    a = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    return net.model(net.node("Relu", net.conv(a, 16, 16)))


def optimized(
    source: ModelProto, precision: str, path: Path, label: str | None = None
) -> ModelProto:
    """As `optimize` writes it, or with another precision in the metadata."""
    optimize(source, path, precision=precision, fuse="all", library=False, verify=False)
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key == "onnxbolt.precision" and label is not None:
            entry.value = label
    return model


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_the_precision_of_what_optimize_writes(
    precision: str, source: ModelProto, tmp_path: Path
) -> None:
    model = optimized(source, precision, tmp_path / "out.onnx")
    assert precision_of(source, model) == precision
    result = verify(source, model, providers=[CPU])
    assert (result.precision, result.passed) == (precision, True)
    assert not any("the metadata says" in note for note in result.notes)
    del model.metadata_props[:]
    assert precision_of(source, model) == precision


def test_a_precision_that_the_model_does_not_have(source: ModelProto, tmp_path: Path) -> None:
    """The limits are those of keep, and the user is told."""
    model = optimized(source, "keep", tmp_path / "out.onnx", label="bf16")
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    result = verify(source, model, providers=[CPU])
    assert (result.precision, result.passed) == ("keep", True)
    assert (
        "compared as keep: the metadata says bf16, but the model has no tensor of that type"
        in result.notes
    )
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 1.002, weight.name)
    )
    assert not verify(source, model, providers=[CPU]).passed


def test_a_precision_that_is_none(source: ModelProto, tmp_path: Path) -> None:
    model = optimized(source, "keep", tmp_path / "out.onnx", label="fp64")
    with pytest.raises(
        InputError, match=r"has onnxbolt\.precision 'fp64'; expected one of fp16, bf16, keep"
    ):
        verify(source, model, providers=[CPU])


@pytest.mark.parametrize(
    ("precision", "label", "name"),
    [
        ("bf16", "keep", "bfloat16"),
        ("fp16", "keep", "float16"),
        ("fp16", "bf16", "float16"),
    ],
)
def test_types_that_the_precision_does_not_ask_for(
    precision: str, label: str, name: str, source: ModelProto, tmp_path: Path
) -> None:
    result = verify(
        source, optimized(source, precision, tmp_path / "out.onnx", label), providers=[CPU]
    )
    assert any(
        f"is rounded to {name}; the model's precision is keep, and the original has no such type"
        in row.reason
        for row in result.failures
    )


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_cast_there_and_back(
    in_function: bool, kind: int, source: ModelProto, tmp_path: Path
) -> None:
    """The CPU provider compares bfloat16 as float32 and drops Casts of fp16 there and back: no
    value is rounded there."""
    model = optimized(source, "keep", tmp_path / "out.onnx")
    nodes = model.functions[0].node if in_function else model.graph.node
    output = nodes[-1].output[0]
    nodes[-1].output[0] = "wide"
    nodes.append(helper.make_node("Cast", ["wide"], ["narrow"], to=kind))
    nodes.append(helper.make_node("Cast", ["narrow"], [output], to=TensorProto.FLOAT))
    failures = verify(source, model, providers=[CPU]).failures
    expected = model.functions[0].name if in_function else "narrow"
    assert [row.name for row in failures if "the model's precision is keep" in row.reason] == [
        expected
    ]
