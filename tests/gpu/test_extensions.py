"""The extensions of tests/extending/ on a GPU, as ONNX Runtime runs them, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxbolt
from onnxbolt import pipeline
from onnxbolt.dtypes import DType
from onnxbolt.inspection import inspect_model
from onnxbolt.measurements.records import Status
from onnxbolt.tune.database import Database
from onnxbolt.verify import verify
from tests.epilogues.written import write
from tests.extending import activation, extended_by, gemm_fma, softmax, strategy
from tests.gpu.reference import relative_error
from tests.support import Net

pytestmark = pytest.mark.gpu
CUDA, ARCH = "CUDAExecutionProvider", "sm_90a"
# relative L2 error of a result: rounding to fp16, and sums of products in fp32, which are no TF32
LIMITS = {DType.F16: 1e-3, DType.F32: 3e-6}
SHAPES = ((96, 70, 50), (1, 512, 8), (1000, 129, 257), (64, 64, 64))  # m, k, n


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The extensions, the family predicted to be faster than all others."""
    monkeypatch.setattr(gemm_fma.GemmFma, "predicted_us", lambda *_: 0.1)
    added = (activation, gemm_fma, softmax, strategy)
    with extended_by(*(module.EXTENSION for module in added)):
        yield


def _ran(source: onnx.ModelProto, out: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of the optimized model's kernels, which are verified, too."""
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert "kernels on" in result.text()
    options = onnxbolt.session_options(out, strict=True)
    found: list[np.ndarray] = ort.InferenceSession(out, options, providers=[CUDA]).run(None, feeds)
    return found


def _feeds(source: onnx.ModelProto, dtype: DType) -> dict[str, np.ndarray]:
    """Normal values that `dtype` holds, a symbolic dimension being 3."""
    rng = np.random.default_rng(0)
    return {
        value.name: rng.standard_normal(
            [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]
        )
        .astype(dtype.numpy)
        .astype(np.float32)
        for value in source.graph.input
    }


STEPS: dict[str, Callable[[Net, str], str]] = {
    "Relu": lambda net, x: net.node("Relu", x),
    "SteepSwish": lambda net, x: write(net, activation.STEEP_SWISH.forms[0], x),
    "Celu": lambda net, x: net.node("Celu", x, alpha=0.5),
}
REFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "SteepSwish": lambda x: activation.STEEP_SWISH.reference(x, None),
    "Celu": lambda x: activation.CELU.reference(x, None, 0.5),
}


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", DType.F16), ("keep", DType.F32)])
def test_a_family_with_steps_of_another_extension(
    precision: str, dtype: DType, tmp_path: Path
) -> None:
    cases = [(shape, step) for shape in SHAPES for step in STEPS]
    net = Net({f"x{i}": (m, k) for i, ((m, k, _), _) in enumerate(cases)})
    ends = [
        STEPS[step](net, net.linear(f"x{i}", k, n)) for i, ((_, k, n), step) in enumerate(cases)
    ]
    source, out = net.model(*ends), tmp_path / "out.onnx"
    onnxbolt.optimize(source, out, archs=ARCH, precision=precision, fuse="all", verify=False)
    nodes = inspect_model(onnx.load(out)).nodes
    families = {config.family.name for node in nodes for config in node.configs}
    assert (len(nodes), families) == (len(cases), {"gemm_fma"})
    feeds = _feeds(source, dtype)
    weights = [onnx.numpy_helper.to_array(t) for t in source.graph.initializer]
    products = [w for w in weights if w.ndim == 2]
    biases = [w for w in weights if w.ndim == 1]
    found = _ran(source, out, feeds)
    for i, (_, step) in enumerate(cases):
        weight = products[i].astype(dtype.numpy).astype(float)
        expected = REFERENCES[step](feeds[f"x{i}"].astype(float) @ weight + biases[i])
        assert relative_error(found[i], expected) <= LIMITS[dtype], (step, expected.shape)


ROWS = ((1, 1), (5, 33), (2, 3, 50, 70), (1000, 197), (3, 5000), ("batch", 64, 77))


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", DType.F16), ("keep", DType.F32)])
@pytest.mark.parametrize("scale", [0.125, -3.0])
def test_an_op_with_its_family(precision: str, dtype: DType, scale: float, tmp_path: Path) -> None:
    net = Net({f"x{i}": shape for i, shape in enumerate(ROWS)})
    ends = [
        net.node("Softmax", net.node("Mul", f"x{i}", net.const(scale)), axis=-1)
        for i in range(len(ROWS))
    ]
    source, out = net.model(*ends), tmp_path / "out.onnx"
    onnxbolt.optimize(source, out, archs=ARCH, precision=precision, fuse="all", verify=False)
    nodes = inspect_model(onnx.load(out)).nodes
    assert {node.op_type for node in nodes} == {f"ScaledSoftmax_{dtype.value}"}
    assert len(nodes) == len(ROWS)
    feeds = _feeds(source, dtype)
    for name, found in zip(feeds, _ran(source, out, feeds), strict=True):
        x = scale * feeds[name].astype(float)
        powers = np.exp(x - x.max(-1, keepdims=True))
        expected = powers / powers.sum(-1, keepdims=True)
        assert relative_error(found, expected) <= LIMITS[dtype], expected.shape


@pytest.mark.usefixtures("extended")
def test_tuning_by_a_strategy_measures_an_extension_s_kernels() -> None:
    net = Net({"x": (96, 70)})
    source = net.model(STEPS["SteepSwish"](net, net.linear("x", 70, 50)))
    tuning = pipeline.tune(source, archs=ARCH, strategy="best_family", fuse="all", budget=3600)
    assert tuning.ended_by == "done"
    with Database() as database:
        measured = list(itertools.chain(*map(database.measurements, database.keys())))
    mine = [m for m in measured if m.config and m.config.family is gemm_fma.GEMM_FMA]
    assert mine
    assert any("SteepSwish" in m.key for m in mine)
    assert all(m.status is Status.OK for m in mine), [m.detail for m in mine]
