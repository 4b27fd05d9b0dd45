"""Batches and sequences of size 0 in plain ONNX Runtime: where the original runs, its optimized
form does so too, with the same shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

import onnxbolt
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention.found import Band, Masked, Masking
from onnxbolt.verify.feeds import drawn, graph_inputs
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from tests.e2e.checking import ARCHS, HOPPER
from tests.e2e.random_graphs import random_model
from tests.e2e.test_models import MODELS
from tests.ops.attention_cases import ORDERS, Case

SOME = 4  # sizes that are not 0
# ONNX Runtime's LSTM ends the process for a batch of 0
BUILDERS = [name for name in MODELS if name != "recurrent"]
SEEDS = range(12)


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU])


def of_any_batch(model: ModelProto) -> ModelProto:
    """The model with a symbol for each input's first size, and without other shapes."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for value in graph_inputs(copy):
        if dims := value.type.tensor_type.shape.dim:
            dims[0].dim_param = "N"
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def symbols(model: ModelProto) -> list[str]:
    dims = (dim for value in graph_inputs(model) for dim in value.type.tensor_type.shape.dim)
    return sorted({dim.dim_param for dim in dims if dim.dim_param})


def empty_feeds(model: ModelProto) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Inputs where one symbol is 0, and where all are."""
    every = symbols(model)
    for zeros in dict.fromkeys([*((name,) for name in every), tuple(every)]):
        at = {
            value.name: tuple(
                (0 if dim.dim_param in zeros else SOME) if dim.dim_param else dim.dim_value
                for dim in value.type.tensor_type.shape.dim
            )
            for value in graph_inputs(model)
        }
        yield ", ".join(zeros), drawn(model, at, 0)


def compare(model: ModelProto, folder: Path, arch: str) -> int:
    """The number of inputs that the original runs on; answers have to be the same."""
    onnxbolt.optimize(
        model,
        folder / "out.onnx",
        precision="keep",
        fuse="all",
        archs=(arch,),
        library=False,
        verify=False,
    )
    original, optimized = session(model), session(onnx.load(folder / "out.onnx"))
    count = 0
    for zeros, feeds in empty_feeds(model):
        try:
            expected = original.run(None, feeds)
        except RUNTIME_ERRORS:  # exporters write -1 into Reshapes, too
            continue
        count += 1
        for one, other in zip(optimized.run(None, feeds), expected, strict=True):
            assert np.shape(one) == np.shape(other), zeros
            if np.asarray(other).dtype.kind == "f":
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3, err_msg=zeros)
    return count


@pytest.mark.parametrize("name", BUILDERS)
def test_models(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    if not symbols(model):
        model = of_any_batch(model)
        try:
            session(model)
        except RUNTIME_ERRORS:
            pytest.skip("the model's Reshapes fix the batch")
    compare(model, tmp_path, HOPPER[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models(seed: int, tmp_path: Path) -> None:
    model = of_any_batch(random_model(seed))
    try:
        session(model)
    except RUNTIME_ERRORS:
        pytest.skip("the model's shapes fix the batch")
    compare(model, tmp_path, (ARCHS, HOPPER)[seed % 2][0])


def attention(mask: bool, cross: bool) -> ModelProto:
    """Two heads of 16 by Reshapes without a -1."""
    queries, keys = ("S", "T") if cross else ("S", "S")
    random = np.random.default_rng(0)
    weights = {f"w{name}": random.standard_normal((32, 32)) * 0.2 for name in "qkvo"}
    inputs = [f"float[B,{queries},32] x", *([f"float[B,{keys},32] c"] if cross else [])]
    inputs += [f"float[B,1,1,{keys}] m"] if mask else []
    other = "c" if cross else "x"
    heads = " ".join(
        f"{name}0 = MatMul({x}, w{name}) {name}1 = Reshape({name}0, apart)"
        f" {name} = Transpose<perm=[{perm}]>({name}1)"
        for name, x, perm in (
            ("q", "x", "0,2,1,3"),
            ("k", other, "0,2,3,1"),
            ("v", other, "0,2,1,3"),
        )
    )
    masked = "t = Add(d, m)" if mask else "t = Identity(d)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g ({", ".join(inputs)}) => (float[B,S,32] y) {{
        {heads} s = MatMul(q, k) d = Mul(s, scale) {masked} p = Softmax<axis=-1>(t)
        o = MatMul(p, v) u = Transpose<perm=[0,2,1,3]>(o) r = Reshape(u, joined) y = MatMul(r, wo)
        }}"""
    )
    constants = {name: values.astype(np.float32) for name, values in weights.items()} | {
        "apart": np.array([0, 0, 2, 16]),
        "joined": np.array([0, 0, 32]),
        "scale": np.array(0.25, np.float32),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(values, name) for name, values in constants.items()
    )
    return model


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_of_no_keys_queries_and_batches(mask: bool, cross: bool, tmp_path: Path) -> None:
    model = attention(mask, cross)
    assert compare(model, tmp_path, HOPPER[0]) == (4 if cross else 3)
    fused = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert sum(name.startswith("FusedAttention") for name in fused) == 1


SWIN = Case(batch=8, queries=6, keys=6, windows=Windows(4, 6, 2, 3, 1, 2))  # two images
CASES = (
    *(Case(order, joined=joined) for order in ORDERS for joined in (True, False)),
    Case(order="packed", heads=6, key_heads=2),
    Case(masking=Masking.ADDED, mask_shape=(2, 1, 5, 5)),
    Case(masking=Masking.KEPT, mask_shape=(2, 4, 5, 5), masked=Masked.ZERO, band=Band(-1, 1)),
)


def emptied(case: Case, size: int) -> None:
    """Run a body whose tensors lack all entries of axes of that size."""
    shapes = case.shapes
    symbols_of = {name: [f"{name}{i}" for i in range(len(shape))] for name, shape in shapes.items()}
    feeds = {
        name: values[tuple(slice(0 if axis == size else None) for axis in values.shape)]
        for name, values in case.draw().items()
    }
    (y,) = session(case.model(symbols=symbols_of)).run(None, feeds)
    assert y.shape == tuple(0 if axis == size else axis for axis in case.answer(case.draw()).shape)


@pytest.mark.parametrize("axis", ["batch", "positions"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bodies_of_attention(case: Case, axis: str) -> None:
    emptied(case, case.batch if axis == "batch" else case.queries)


@pytest.mark.parametrize("axes", [1, 2])
def test_bodies_of_attention_in_windows_of_no_images(axes: int) -> None:
    case = replace(SWIN, image_axes=axes)
    emptied(case, case.shapes["q"][0])
