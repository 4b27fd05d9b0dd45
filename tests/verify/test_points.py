"""Models with symbolic dimensions are compared at the sizes that kernels were chosen for, and at
odd ones."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.opspec import configs_of_node
from onnxbolt.options import Options
from onnxbolt.pipeline import optimize
from onnxbolt.plan.ranges import Extent
from onnxbolt.verify import verify
from onnxbolt.verify.models import Models
from onnxbolt.verify.points import between, points, unmet
from onnxbolt.verify.session import CPU, CUDA, Runner
from tests.test_verify import drawn, model_of


def perceptron(rows: str = "N", rest: str = "") -> ModelProto:
    weights = {
        "w": drawn(0, 64, 128),
        "b": drawn(1, 128),
        "v": drawn(2, 128, 64),
        "s": np.array([1, 64], np.int64),
    }
    return model_of(
        f"(float[{rows},64] x) => (float[{rows},64] y)",
        f"a = MatMul(x, w) h = Add(a, b) r = Relu(h) y = MatMul(r, v) {rest}",
        weights,
    )


def compared(*, model: ModelProto, **choices: Any) -> list[str]:
    """The sizes of the rows of the whole model."""
    result = verify(model, model, providers=[CPU], **choices)
    assert result.passed
    return [row.sizes for row in result.at("model")]


def test_on_the_cpu_the_least_and_an_odd_size_are_verified() -> None:
    assert compared(model=perceptron()) == ["x:1x64", "x:3x64"]
    assert compared(
        model=perceptron(), min_shapes={"x": (16, 64)}, max_shapes={"x": (1024, 64)}
    ) == ["x:16x64", "x:129x64"]
    assert compared(model=perceptron(), opt_shapes={"x": (40, 64)}) == ["x:40x64"]
    assert compared(model=perceptron("8")) == [""]


def test_the_odd_size_lies_between_the_least_and_the_largest() -> None:
    assert between({"x": (1, 3, 32, 64)}, {"x": (64, 3, 512, 64)}) == [
        {"x": (9, 3, 129, 64)},
        {"x": (9, 3, 128, 64)},
        {"x": (9, 3, 32, 64)},
    ]
    assert between({"x": (1, 5)}, {"x": (2, 5)})[0] == {"x": (2, 5)}  # there is none between


def test_where_odd_images_do_not_fit_the_batch_alone_is_odd() -> None:
    """The model halves and doubles the image, which only even sizes survive."""
    body = (
        'p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) u = Resize<mode="nearest">(p, , scales)'
        " y = Add(u, x)"
    )
    model = model_of(
        "(float[N,3,H,W] x) => (float[N,3,H,W] y)",
        body,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    )
    shapes = {"min_shapes": {"x": (1, 3, 32, 32)}, "max_shapes": {"x": (64, 3, 64, 64)}}
    assert compared(model=model, **shapes) == ["x:1x3x32x32", "x:9x3x32x32"]
    shapes["max_shapes"] = {"x": (64, 3, 512, 400)}
    assert compared(model=model, **shapes) == ["x:1x3x32x32", "x:9x3x128x96"]


def test_images_are_no_squares_where_the_model_takes_others() -> None:
    any_image = model_of("(float[n,3,h,w] x) => (float[n,3,h,w] y)", "y = Relu(x)", {})
    assert compared(model=any_image) == ["x:1x3x64x96", "x:3x3x96x64"]
    squares = model_of(
        "(float[n,3,h,w] x) => (float[n,3,h,w] y)",
        "t = Transpose<perm=[0,1,3,2]>(x) y = Add(x, t)",
        {},
    )
    assert compared(model=squares) == ["x:1x3x64x64", "x:3x3x64x64"]


def test_sizes_whose_tensors_fill_the_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row with each: 3,000 x 3,000 products are 144 MB in a comparison, 100 x 100 0.2 MB."""
    monkeypatch.setattr(sys.modules[points.__module__], "physical_memory", lambda: 1 << 22)
    rows = model_of(
        "(float[N,8] x) => (float[N,N] y)", "t = Transpose<perm=[1,0]>(x) y = MatMul(x, t)", {}
    )
    shapes: dict[str, Any] = {
        f"{point}_shapes": {"x": (size, 8)}
        for point, size in (("min", 4), ("opt", 100), ("max", 3000))
    }
    result = verify(rows, rows, providers=[CPU], **shapes)
    assert {row.sizes for row in result.rows} == {"x:4x8", "x:109x8"}
    shapes["opt_shapes"] = shapes["min_shapes"] = shapes["max_shapes"]
    result = verify(rows, rows, providers=[CPU], **shapes)
    assert result.notes[0] == (
        "CPU: not compared at x:3000x8, because y has 9.0e+06 elements there, too many for this"
        " machine's 0.0 GiB of memory"
    )


def test_sizes_that_the_original_does_not_take_are_named() -> None:
    baked = model_of(
        "(float[N,64] x) => (float[1,64] y)",
        "y = Reshape(x, s)",
        {"s": np.array([1, 64], np.int64)},
    )
    result = verify(baked, baked, providers=[CPU])
    assert [row.sizes for row in result.rows] == ["x:1x64"]
    assert result.notes == ("CPU: not compared at x:3x64, because the original does not run there",)
    with pytest.raises(InputError, match=r"inputs='x\.npz'"):
        verify(
            model := model_of(
                "(float[N,64] x) => (float[5,5] y)",
                "y = Reshape(x, s)",
                {"s": np.array([5, 5], np.int64)},
            ),
            model,
            providers=[CPU],
        )


def test_shapes_that_do_not_fit_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(perceptron(), tmp_path / "in.onnx")
    command = ["verify", str(tmp_path / "in.onnx"), str(tmp_path / "in.onnx"), "--opt-shapes"]
    assert main([*command, "x:[4,63]"]) == 1
    assert "does not fit: the model says [N,64]" in capsys.readouterr().err
    assert main([*command, "x:[4,64]"]) == 0
    assert "CPU, x:4x64, outputs: 1 within their limits" in capsys.readouterr().out


def test_a_fault_at_one_size_alone_is_found() -> None:
    """Results with more than five rows are too large."""
    weights = {"one": np.float32(1), "least": np.float32(5)}
    right = model_of("(float[N,4] x) => (float[N,4] y)", "y = Abs(x)", {})
    body = (
        "z = Abs(x) r = Mul(z, zero) e = Exp(r) n = ReduceSum<keepdims=0>(e) t = Div(n, four) m ="
        " Max(t, least) o = Sub(m, least) f = Add(o, one) y = Mul(z, f)"
    )
    wrong = model_of(
        "(float[N,4] x) => (float[N,4] y)",
        body,
        weights | {"zero": np.float32(0), "four": np.float32(4)},
    )
    assert verify(right, wrong, providers=[CPU], opt_shapes={"x": (4, 4)}).passed
    result = verify(
        right, wrong, providers=[CPU], min_shapes={"x": (1, 4)}, max_shapes={"x": (64, 4)}
    )
    assert {row.sizes for row in result.failures} == {"x:9x4"}


@pytest.fixture(scope="module")
def on_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """As if on a GPU; the reference still runs on the CPU."""
    out = tmp_path_factory.mktemp("points") / "out.onnx"
    source = perceptron()
    optimize(source, out, archs=("sm_90a", "sm_80"), fuse="all", library=False, verify=False)
    optimized = onnx.load(out)
    candidate = Runner(optimized, CPU)
    candidate.provider = CUDA
    return Models(source, optimized, Runner(source, CPU), candidate)


def test_on_a_gpu_the_opt_and_the_largest_size_are_verified_too(
    on_a_gpu: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    asked = Options(
        min_shapes={"x": (16, 64)}, opt_shapes={"x": (64, 64)}, max_shapes={"x": (512, 64)}
    )
    assert [point.name for point in points(on_a_gpu, 0, asked)][:4] == [
        "x:16x64",
        "x:91x64",
        "x:64x64",
        "x:512x64",
    ]
    assert [point.name for point in points(on_a_gpu, 0, Options())][:4] == [
        "x:1x64",
        "x:9x64",
        "x:8x64",
        "x:64x64",
    ]


def test_on_a_gpu_every_row_of_a_table_is_met(
    on_a_gpu: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized = ModelProto()
    optimized.CopyFrom(on_a_gpu.optimized)
    node, *_ = (node for node in optimized.graph.node if node.domain == "com.onnxbolt")
    (configs,) = (attribute for attribute in node.attribute if attribute.name == "configs")
    first, *_ = (config for config in configs_of_node(node) if config.arch == 90)
    bounds = [(0, 3), (4, 100), (101, 200), (201, 2**31 - 1)]
    del configs.ints[:]
    configs.ints.extend(number for low, high in bounds for number in row(first, low, high))
    models = Models(on_a_gpu.original, optimized, on_a_gpu.reference, on_a_gpu.candidate)
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    least, most = {"x": (1, 64)}, {"x": (1000, 64)}
    points = Extent(least, most, most).points
    assert unmet(models, [least, most], points) == [{"x": (4, 64)}, {"x": (128, 64)}]
    assert unmet(models, [least, {"x": (50, 64)}, {"x": (150, 64)}, most], points) == []
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_75")
    assert unmet(models, [least, most], points) == []


def row(config: KernelConfig, low: int, high: int) -> tuple[int, ...]:
    return tuple(dataclasses.replace(config, min_m=low, max_m=high).row())
