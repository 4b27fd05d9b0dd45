"""Norms in products from plan to lock file: in every form that the report, the lock file and the
written model have of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

import onnxbolt
from onnxbolt.families import named
from onnxbolt.library import manifest_of_model
from onnxbolt.opspec import configs_of_node
from onnxbolt.report.render import text
from onnxbolt.tune.lockfile import Lock
from onnxbolt.verify import verify
from tests.support import Net, planned

ROWS, DEPTH, WIDTH = 640, 256, 384
FAMILY = named("gemm_norm_sm90")
OPTIONS: dict[str, Any] = {"library": False, "archs": ["sm_90a"], "fuse": "all"}


@pytest.fixture(autouse=True)
def _planned() -> Iterator[None]:
    with planned(FAMILY):
        yield


def block(rms: bool = False, stored: bool = True, rows: int | str = ROWS) -> ModelProto:
    """The end of a transformer's block: a product, the residual, a norm, and, where `stored`, the
    sum as an output. RMSNorm is decomposed, as exporters write it."""
    net = Net({"x": (rows, DEPTH), "r": (rows, WIDTH)})
    total = net.node("Add", "r", net.linear("x", DEPTH, WIDTH))
    if rms:
        squares = net.node("ReduceMean", net.node("Pow", total, net.const(2.0)), axes=[-1])
        root = net.node("Sqrt", net.node("Add", squares, net.const(1e-6)))
        y = net.node("Mul", net.node("Div", total, root), net.normal(WIDTH))
    else:
        y = net.node("LayerNormalization", total, net.normal(WIDTH), net.normal(WIDTH))
    return net.model(y, total) if stored else net.model(y)


def fused(path: Path) -> onnx.NodeProto:
    (node,) = (n for n in onnx.load(path).graph.node if n.op_type.startswith("FusedGemm"))
    return node


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_plain_onnx_runtime_gives_the_original_s_answers(
    precision: str, stored: bool, rms: bool, tmp_path: Path
) -> None:
    model, out = block(rms, stored), tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, out, precision=precision, **OPTIONS)
    assert report.passed
    node = fused(out)
    norm = "RmsNorm_Scale" if rms else "LayerNorm_Scale_Bias"
    store = "Store_" if stored else ""
    assert node.op_type.startswith(f"FusedGemm_Bias_Add_{store}{norm}_")
    assert len(node.output) == 1 + stored
    rows = report.verification.rows if report.verification is not None else ()
    judged = [row for row in rows if row.node == node.name]
    assert {row.kind for row in judged} == {"segment", "fused node"}
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((ROWS, DEPTH)).astype(np.float32),
        "r": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
    }
    expected, found = (
        onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for each in (model.SerializeToString(), str(out))
    )
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < {"fp16": 5e-3, "bf16": 4e-2, "keep": 1e-5}[precision]


def test_the_report_and_the_library_know_it(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(block(), out, precision="fp16", verify=False, **OPTIONS)
    (node,) = (n for n in report.fused if "LayerNorm" in n.op)
    assert node.flops == 2 * ROWS * DEPTH * WIDTH
    assert "LayerNorm" in text(report)
    (op,) = (op for op in manifest_of_model(onnx.load(out)).ops if op.op.name == "gemm")
    assert (op.kind, op.operands) == ("gemm", "vtvv")
    assert {config.family for config in configs_of_node(fused(out))} == {FAMILY}


def _body(model: ModelProto) -> onnx.FunctionProto:
    (found,) = (f for f in model.functions if f.name.startswith("FusedGemm"))
    return found


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_another_epsilon_and_a_missing_mean_are_found(precision: str, tmp_path: Path) -> None:
    model, out = block(), tmp_path / "out.onnx"
    onnxbolt.optimize(model, out, precision=precision, verify=False, **OPTIONS)
    assert verify(model, onnx.load(out), seed=1).passed
    wide = onnx.load(out)
    epsilon = next(n for n in _body(wide).node if n.op_type == "Add" and _reads_constant(wide, n))
    constant = next(n for n in _body(wide).node if n.output[0] == epsilon.input[1])
    constant.attribute[0].t.CopyFrom(
        onnx.numpy_helper.from_array(np.array(0.5, np.float32), constant.output[0])
    )
    assert not verify(model, wide, seed=1).passed
    uncentered = onnx.load(out)
    difference = next(n for n in _body(uncentered).node if n.op_type == "Sub")
    difference.op_type = "Add"
    assert not verify(model, uncentered, seed=1).passed


def _reads_constant(model: ModelProto, node: onnx.NodeProto) -> bool:
    made = {n.output[0] for n in _body(model).node if n.op_type == "Constant"}
    return any(name in made for name in node.input)


def test_the_lock_file_gives_the_same_kernels_again(tmp_path: Path) -> None:
    lock, paths = tmp_path / "lock", [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, frozen in zip(paths, (False, True), strict=True):
        onnxbolt.optimize(
            block(), path, precision="fp16", verify=False, lock=lock, frozen=frozen, **OPTIONS
        )
    assert "GemmNormProblem" in lock.read_text()
    assert Lock.read(lock)
    first, second = ([c.row() for c in configs_of_node(fused(path))] for path in paths)
    assert first == second


def test_symbolic_rows_have_a_table_of_kernels(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(block(rows="rows"), out, precision="fp16", verify=False, **OPTIONS)
    configs = configs_of_node(fused(out))
    assert (configs[0].min_m, configs[-1].max_m) == (0, 2**31 - 1)
    assert {config.family for config in configs} == {FAMILY}
    feeds = {
        "x": np.ones((3, DEPTH), np.float32),
        "r": np.linspace(0, 1, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH),
    }
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert session.run(None, feeds)[0].shape == (3, WIDTH)


def test_for_several_architectures_they_stay_apart(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    options = OPTIONS | {"archs": ["sm_80", "sm_90a"]}
    report = onnxbolt.optimize(block(), out, precision="fp16", verify=False, **options)
    assert not any("LayerNorm" in n.op and "Gemm" in n.op for n in report.fused)
    reasons = [r.reason for r in report.refusals if r.op == "LayerNormalization"]
    assert reasons == [
        "not fused into the previous epilogue, because no kernel computes both: rows of 384 columns"
    ]
