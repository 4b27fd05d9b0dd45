"""Attention from plan to lock file: an encoder is fused whole, in every form that the report, the
lock file and the written model have of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto

import onnxbolt
from onnxbolt.inspection import inspect_model
from onnxbolt.opspec import configs_of_node
from onnxbolt.report import Report
from onnxbolt.report.render import text
from onnxbolt.tune.lockfile import Lock
from onnxbolt.verify import verify
from tests.support import Net

BATCH, TOKENS, HEADS, SIZE = 4, 197, 4, 64
WIDTH = HEADS * SIZE
OPTIONS: dict[str, Any] = {"library": False, "archs": ["sm_80", "sm_90a"]}


def encoder(layers: int = 2, batch: int | str = BATCH, masked: bool = False) -> ModelProto:
    """Attention and its projections, with residuals, as ViT has them; `masked`: with a boolean
    input that keeps keys."""
    mask = {"mask": (batch, 1, 1, TOKENS)} if masked else {}
    net = Net(
        {"x": (batch, TOKENS, WIDTH), **mask}, types={"mask": TensorProto.BOOL} if masked else None
    )
    shape, joined = (net.const(s, np.int64) for s in ([0, 0, HEADS, SIZE], [0, 0, WIDTH]))
    x = "x"
    for _ in range(layers):
        heads = [net.node("Reshape", net.linear(x, WIDTH, WIDTH), shape) for _ in range(3)]
        q, k, v = (
            net.node("Transpose", tensor, perm=perm)
            for tensor, perm in zip(heads, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = net.node("Mul", net.node("MatMul", q, k), net.const(SIZE**-0.5))
        if masked:
            scores = net.node("Where", "mask", scores, net.const(np.finfo(np.float32).min))
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
        rows = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
        x = net.node("Add", x, net.linear(rows, WIDTH, WIDTH))
    return net.model(x)


def attentions(path: Path) -> list[onnx.NodeProto]:
    nodes = onnx.load(path).graph.node
    return [node for node in nodes if node.op_type.startswith("FusedAttention")]


def test_the_dry_run_s_report_counts_its_products() -> None:
    report = onnxbolt.optimize(encoder(), verify=False, **OPTIONS)
    fused = [node for node in report.fused if node.op.startswith("FusedAttention")]
    assert [node.flops for node in fused] == [4 * BATCH * HEADS * TOKENS**2 * SIZE] * 2
    assert report.coverage == 1.0
    assert not [r for r in report.refusals if r.op in ("MatMul", "Softmax")]
    for node in fused:
        assert [prediction.arch for prediction in node.predicted] == [80, 90]
        assert all(0 < p.ours_us < p.ort_us for p in node.predicted)
    assert f"attention {BATCH}x{HEADS}x{TOKENS}x{SIZE}, f16" in {v.region for v in report.regions}
    assert "FusedAttention_qkv_packed_f16" in text(report)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_plain_onnx_runtime_gives_the_original_s_answers(precision: str, tmp_path: Path) -> None:
    model, out = encoder(), tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, out, precision=precision, **OPTIONS)
    assert report.passed
    rows = report.verification.rows if report.verification is not None else ()
    judged = {row.kind for row in rows if "FusedAttention" in row.node}
    assert judged == {"segment", "fused node"}
    assert len(attentions(out)) == 2
    x = np.random.default_rng(0).standard_normal((BATCH, TOKENS, WIDTH)).astype(np.float32)
    expected, found = (
        onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for each in (model.SerializeToString(), str(out))
    )
    error = np.linalg.norm(found[0] - expected[0]) / np.linalg.norm(expected[0])
    assert error < {"fp16": 5e-3, "bf16": 4e-2, "keep": 1e-5}[precision]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_wrong_scale_is_found(precision: str, masked: bool, tmp_path: Path) -> None:
    """A segment is compared with tensors of the original, which a residual follows."""
    model, out = encoder(1, 2, masked), tmp_path / "out.onnx"
    onnxbolt.optimize(model, out, precision=precision, verify=False, **OPTIONS)
    optimized = onnx.load(out)
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("FusedAttention"))
    (scale,) = (attribute for attribute in node.attribute if attribute.name == "scale")
    assert verify(model, optimized, seed=1).passed
    scale.f *= 2
    assert not verify(model, optimized, seed=1).passed


def test_the_lock_file_gives_the_same_kernels_again(tmp_path: Path) -> None:
    lock, paths = tmp_path / "lock", [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, frozen in zip(paths, (False, True), strict=True):
        onnxbolt.optimize(encoder(), path, verify=False, lock=lock, frozen=frozen, **OPTIONS)
    assert "AttentionProblem" in lock.read_text()
    assert Lock.read(lock)
    first, second = (
        [(node.name, [config.row() for config in configs_of_node(node)]) for node in found]
        for found in map(attentions, paths)
    )
    assert len(first) == 2
    assert first == second


def test_symbolic_batches_have_a_table_of_kernels(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(encoder(1, "batch"), out, verify=False, **OPTIONS)
    (node,) = attentions(out)
    for arch in (80, 90):
        configs = [config for config in configs_of_node(node) if config.arch == arch]
        assert (configs[0].min_m, configs[-1].max_m) == (0, 2**31 - 1)
    assert len({config.instance() for config in configs_of_node(node)}) > 2
    x = np.random.default_rng(0).standard_normal((3, TOKENS, WIDTH)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0].shape == (3, TOKENS, WIDTH)


def test_written_models_can_be_inspected(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(encoder(1), out, verify=False, **OPTIONS)
    inspected = inspect_model(onnx.load(out))
    assert any("FusedAttention" in repr(node) for node in inspected.nodes)


# --- the zoo --------------------------------------------------------------------------------------


@pytest.mark.zoo
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exporter", ["ts", "dynamo"])
@pytest.mark.parametrize("name", ["timm_vit_base_patch16_224", "bert_base"])
def test_all_attentions_of_vit_and_bert_win(
    name: str, exporter: str, zoo: Callable[[str], ModelProto]
) -> None:
    options = {**OPTIONS, "archs": ["sm_90a"]}
    report: Report = onnxbolt.optimize(zoo(f"{name}.{exporter}"), verify=False, **options)
    assert sum(node.op.startswith("FusedAttention") for node in report.fused) == 12
    assert report.coverage is not None
    assert report.coverage > 0.999
