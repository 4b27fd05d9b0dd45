"""Operators between convolutions in ONNX Runtime on a GPU: by segments and nodes, at several
sizes in one session. The tests switch on what no plan has yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxbolt
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.gpu.image_models import MODELS, feeds, op_types
from tests.gpu.prepared import ARCH

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_right(name: str, precision: str, tmp_path: Path) -> None:
    model, out = MODELS[name], tmp_path / "out.onnx"
    source = model.build()
    onnxbolt.optimize(source, out, archs=(ARCH,), precision=precision, fuse="all", verify=False)
    types = op_types(str(out))
    assert all(any(word in kind for kind in types) for word in model.words), types
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.shapes])
def test_one_session_serves_all_sizes(name: str, tmp_path: Path) -> None:
    """Also where ONNX broadcasts a single row of pixels, and for sizes in the host's memory."""
    model, out = MODELS[name], tmp_path / "out.onnx"
    source = model.build()
    onnxbolt.optimize(source, out, archs=(ARCH,), precision="keep", fuse="all", verify=False)
    options = onnxbolt.session_options(out, strict=True)
    ours = ort.InferenceSession(out, options, providers=[CUDA])
    plain = ort.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for shapes in (*model.shapes, model.shapes[0]):
        given = feeds(source, shapes)
        for got, expected in zip(ours.run(None, given), plain.run(None, given), strict=True):
            assert got.shape == expected.shape
            error = np.linalg.norm(got.astype(np.float64) - expected)
            assert error <= 2e-3 * np.linalg.norm(expected)  # products in TF32
