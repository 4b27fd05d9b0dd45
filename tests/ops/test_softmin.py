"""An op of an extension goes through matching, planning, export, its body in plain ONNX Runtime,
inspection, the lock file and verification; all but the first are told nothing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import Report
from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import Step
from onnxbolt.errors import InputError
from onnxbolt.extensions import Extension, register
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model
from onnxbolt.ops import OPS, named, of_type
from onnxbolt.ops.base import FusedOp, Part, Signature
from onnxbolt.ops.functions import build
from onnxbolt.patterns.types import Match
from onnxbolt.verify import verify
from tests.extending import extended_by
from tests.ops.softmin import EXTENSION, Softmin
from tests.support import Net, matched

SHAPE = (4, 64, 96)


@pytest.fixture
def extended() -> Iterator[None]:
    with extended_by(EXTENSION):
        yield


def _source(axis: int = -1, factor: float = 1.5) -> onnx.ModelProto:
    net = Net({"x": SHAPE})
    y = net.node("Softmax", net.node("Neg", "x"), axis=axis)
    return net.model(net.node("Mul", y, net.const(factor)))


def _optimized(out: Path, source: onnx.ModelProto | None = None, **options: object) -> Report:
    chosen = {"archs": "sm_80", "precision": "keep", "library": False} | options
    return onnxbolt.optimize(source or _source(), out, **chosen)  # type: ignore[arg-type]


@pytest.mark.usefixtures("extended")
def test_it_is_matched_whole() -> None:
    (candidate,), refusals = matched(_source())
    assert [node.op for node in candidate.nodes] == ["Neg", "Softmax", "Mul"]
    assert (candidate.rule, candidate.links, refusals) == ("softmin", (), [])


@pytest.mark.usefixtures("extended")
def test_a_near_miss_says_why() -> None:
    candidates, (refusal,) = matched(_source(axis=1))
    assert candidates == []
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "its softmax is over another axis than the last"


@pytest.mark.usefixtures("extended")
def test_a_value_inside_that_is_an_output_stays() -> None:
    net = Net({"x": SHAPE})
    inner = net.node("Softmax", net.node("Neg", "x"))
    candidates, (refusal,) = matched(net.model(inner, net.node("Mul", inner, net.const(2.0))))
    assert candidates == []
    assert refusal.reason == "one of its intermediate values is a graph output"


class _Careless(Softmin):
    """A Softmin whose pattern does not ask who else reads the values inside."""

    def _match(self, node: gs.Node) -> Match:
        (softmax, *_), x = node.outputs[0].outputs, node.inputs[0]
        (mul,) = softmax.outputs[0].outputs
        factor = mul.inputs[1]
        return Anchor(self, node, x, None, DType.F32, (factor,), (softmax, mul)), ()


def test_a_value_inside_that_other_nodes_read_stays() -> None:
    net = Net({"x": SHAPE})
    inner = net.node("Neg", "x")
    y = net.node("Mul", net.node("Softmax", inner), net.const(2.0))
    model = net.model(y, net.node("Add", inner, "x"))
    with extended_by(dataclasses.replace(EXTENSION, ops=(_Careless(),))):
        candidates, (refusal, *_) = matched(model)
    assert candidates == []
    assert refusal.reason == "one of its intermediate values is read by other nodes"


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_it_is_planned_exported_and_verified(precision: str, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", precision=precision)
    assert report.passed
    (node,) = report.fused
    assert node.op.startswith("FusedSoftmin_")
    levels = {row.kind for row in report.verification.rows}  # type: ignore[union-attr]
    assert levels == {"output", "segment", "fused node"}


@pytest.mark.usefixtures("extended")
def test_its_body_runs_in_plain_onnx_runtime(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    session = onnxruntime.InferenceSession(
        tmp_path / "out.onnx", providers=["CPUExecutionProvider"]
    )
    powers = np.exp(-x.astype(float))
    expected = 1.5 * powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)


@pytest.mark.usefixtures("extended")
def test_verification_sees_another_factor(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    model = onnx.load(tmp_path / "out.onnx")
    (node,) = model.graph.node
    (scale,) = (each for each in node.attribute if each.name == "scale")
    scale.f *= 1.01
    assert not verify(_source(), model).passed


@pytest.mark.usefixtures("extended")
def test_its_cost_is_compared_with_onnx_runtimes(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    (prediction,) = report.fused[0].predicted
    assert 0 < prediction.ours_us < prediction.ort_us


@pytest.mark.usefixtures("extended")
def test_it_is_in_reports_lock_files_and_manifests(tmp_path: Path) -> None:
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "model.lock"))
    _optimized(out, lock=lock)
    _optimized(again, lock=lock, frozen=True)
    assert out.read_bytes() == again.read_bytes()
    (node,) = inspect_model(onnx.load(out)).nodes
    assert (node.op_type, node.rule, node.flops) == ("FusedSoftmin_f32", "softmin", None)
    manifest = manifest_of_model(onnx.load(out))
    assert [op.kind for op in manifest.ops] == ["softmin"]
    assert {instance.config.family.name for instance in manifest.instances} == {"softmin_rows"}
    assert manifest.extensions == ("softmins",)


def test_a_model_that_has_it_needs_it(tmp_path: Path) -> None:
    with extended_by(EXTENSION):
        _optimized(tmp_path / "out.onnx")
    with pytest.raises(InputError, match="needs the extension softmins, which is not installed"):
        manifest_of_model(onnx.load(tmp_path / "out.onnx"))


def test_without_it_the_nodes_stay(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert not report.fused


def test_without_a_family_the_report_says_so(tmp_path: Path) -> None:
    with extended_by(dataclasses.replace(EXTENSION, families=())):
        report = _optimized(tmp_path / "out.onnx")
    assert not report.fused
    assert "no kernel family that is installed solves a softmin" in " ".join(report.text().split())


class _Again(FusedOp):
    """An op with a kind of the package's."""

    name, op_type = "other", "FusedOther"
    kinds = ("other", "conv1d")


class _SameTypes(FusedOp):
    """An op whose types would begin as another's do."""

    name, op_type = "other", "FusedConv"


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (_Again(), "its fused op other has the kind conv1d of onnxbolt's own conv"),
        (_SameTypes(), "has the op_type FusedConv of onnxbolt's own conv"),
    ],
    ids=["kind", "op type"],
)
def test_names_are_taken_once(op: FusedOp, message: str) -> None:
    with pytest.raises(InputError, match=message):
        register(Extension(name="others", ops=(op,)))
    assert "other" not in OPS


def test_an_op_type_tells_its_op() -> None:
    assert of_type("FusedConv_Bias_f16") is named("conv")
    assert of_type("GlobalAveragePool_nhwc_f16") is named("global_average_pool")
    assert of_type("FusedConvolution_f16") is None


@pytest.mark.parametrize("part", Part)
def test_an_op_type_tells_what_of_its_output_it_writes(part: Part) -> None:
    signature = Signature(named("elementwise"), DType.F16, 0, (Step("Relu"),), part=part)
    name = build(signature, 17).name
    assert Part.of(name) is part


def test_each_kind_has_one_op() -> None:
    for op in OPS.values():
        assert [named(kind) for kind in op.kinds] == [op] * len(op.kinds)
