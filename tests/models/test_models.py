"""The builders: valid, runnable, of the published size, deterministic, and safe in fp16."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import NAMES, build
from models.__main__ import main

# millions of parameters, as published by torchvision, timm, Hugging Face and the RepVGG paper
PUBLISHED = {
    "vgg16": 138.36,
    "vgg19": 143.67,
    "resnet18": 11.69,
    "resnet50": 25.56,
    "resnext50": 25.03,
    "repvgg_a0": 9.11,
    "repvgg_a0_deploy": 8.31,
    "repvgg_a1": 14.09,
    "repvgg_a1_deploy": 12.79,
    "repvgg_b0": 15.82,
    "repvgg_b0_deploy": 14.34,
    "mobilenet_v3_large": 5.48,
    "squeezenet1_1": 1.24,
    "densenet121": 7.98,
    "bert_base": 109.48,
    "vit_b16": 86.57,
}
# quick enough to run twice
LIGHT = tuple(name for name in NAMES if not name.startswith(("vgg", "bert", "vit")))
Arrays = dict[str, np.ndarray]


_light = cache(partial(build, batch="N"))


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    """Each model once, with symbolic batch: pytest groups tests by it, so one of the large ones
    is in memory at a time."""
    name = request.param
    return name, _light(name) if name in LIGHT else build(name, batch="N")


def _feeds(session: ort.InferenceSession, batch: int) -> Arrays:
    rng = np.random.default_rng(7)
    feeds = {}
    for value in session.get_inputs():
        shape = [batch, *value.shape[1:]]
        if value.type == "tensor(int64)":
            feeds[value.name] = (
                np.ones(shape, np.int64) if "mask" in value.name else rng.integers(0, 1000, shape)
            )
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(
                np.float16 if value.type == "tensor(float16)" else np.float32
            )
    return feeds


def _run(model: onnx.ModelProto, batch: int = 2) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, _feeds(session, batch))


@cache
def _expected(name: str) -> list[np.ndarray]:
    """The answers of a light model in fp32."""
    return _run(_light(name))


def _parameters(model: onnx.ModelProto) -> float:
    """Millions."""
    floats = (
        tensor
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and ".running_" not in tensor.name
    )
    return sum(int(np.prod(tensor.dims)) for tensor in floats) / 1e6


def test_parameter_count_is_the_published_one(named: tuple[str, onnx.ModelProto]) -> None:
    name, model = named
    if name not in PUBLISHED:
        pytest.skip("a size of our own choice")
    assert _parameters(model) == pytest.approx(PUBLISHED[name], rel=5e-3)


def test_model_is_valid(named: tuple[str, onnx.ModelProto]) -> None:
    name, model = named
    onnx.checker.check_model(model, full_check=name in LIGHT)


def test_outputs_have_a_sane_scale(named: tuple[str, onnx.ModelProto]) -> None:
    for output in _run(named[1], batch=1):
        assert np.isfinite(output).all()
        assert 1e-3 < np.sqrt(np.mean(output**2)) < 30


@pytest.mark.parametrize("name", LIGHT)
def test_half_precision_differs_by_rounding_alone(name: str) -> None:
    expected, half = _expected(name), _run(build(name, "N", "fp16", io="fp32"))
    for reference, output in zip(expected, half, strict=True):
        assert output.dtype == np.float32
        # a whole model in fp16
        assert np.linalg.norm(output - reference) <= 1e-2 * np.linalg.norm(reference)


def test_half_precision_has_half_inputs_and_outputs_unless_told() -> None:
    graph = build("dlrm_mlp", precision="fp16").graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {
        onnx.TensorProto.FLOAT16
    }


@pytest.mark.parametrize("variant", ["a0", "b0"])
def test_deployed_repvgg_is_the_trained_function(variant: str) -> None:
    (trained,), (deployed,) = (
        _expected(f"repvgg_{variant}"),
        _expected(f"repvgg_{variant}_deploy"),
    )
    np.testing.assert_allclose(deployed, trained, rtol=1e-3, atol=1e-3 * np.abs(trained).max())


@pytest.mark.parametrize(("variant", "published"), [("a0", 13.35), ("a1", 21.7), ("b0", 24.85)])
def test_augmented_repvgg_is_the_published_one(variant: str, published: float) -> None:
    """Bolt's table 5 counts each added convolution as a 3x3, nine times the parameters of the
    1x1 that its text describes."""
    plain, augmented = (
        _parameters(build(f"{name}_{variant}_deploy")) for name in ("repvgg", "repvggaug")
    )
    assert plain + 9 * (augmented - plain) == pytest.approx(published, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "operator"), [("gelu", "Erf"), ("hard_swish", "HardSwish"), ("softplus", "Softplus")]
)
def test_activation_follows_every_convolution(name: str, operator: str) -> None:
    operators = [node.op_type for node in build(f"repvgg_a0_deploy_{name}").graph.node]
    assert operators.count("Conv") == operators.count(operator) == 22
    assert "Relu" not in operators


@pytest.mark.parametrize("opset", [13, 16, 18, 21])
@pytest.mark.parametrize("name", ["mobilenet_v3_large", "dcn_v2", "resnet18"])
def test_every_opset_gives_the_same_answers(name: str, opset: int) -> None:
    for reference, output in zip(_expected(name), _run(build(name, "N", opset=opset)), strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-4)


def test_layer_norm_is_decomposed_below_opset_17() -> None:
    operators = {node.op_type for node in build("vit_b16", opset=13).graph.node}
    assert "LayerNormalization" not in operators
    assert {"ReduceMean", "Pow", "Sqrt"} <= operators


def test_the_seed_decides_the_bytes() -> None:
    first, again, other = (build("dcn_v2", seed=seed).SerializeToString() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "alexnet"}, "choose one of vgg16"),
        ({"precision": "int8"}, "choose one of fp32"),
        ({"io": "int8"}, "choose one of fp32"),
        ({"opset": 9}, "from 13 to"),
        ({"batch": 0}, "positive number"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**{"name": "dlrm_mlp", **arguments})


def test_the_command_line_writes_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.onnx"
    assert main(["dlrm_mlp", str(out), "--batch", "4", "--precision", "fp16"]) == 0
    assert [d.dim_value for d in onnx.load(out).graph.input[0].type.tensor_type.shape.dim] == [
        4,
        256,
    ]
    assert main(["dlrm_mlp", str(tmp_path / "no" / "such.onnx")]) == 1
    assert "error:" in capsys.readouterr().err
