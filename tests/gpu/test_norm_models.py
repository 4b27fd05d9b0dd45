"""Normalizations of tokens and of embeddings in ONNX Runtime on a GPU: every form of tests/ops/,
by segments and nodes; indices out of range. The tests switch on what no plan has yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

import onnxbolt
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.gpu.prepared import ARCH
from tests.ops import test_embeddings, test_tokens
from tests.ops.test_embeddings import LENGTH, SHAPE, WORDS

pytestmark = pytest.mark.gpu
PRECISIONS = ("keep", "fp16", "bf16")


def _optimized(source: ModelProto, out: Path, precision: str) -> set[str]:
    """The op types of the fused norms."""
    onnxbolt.optimize(source, out, archs=(ARCH,), precision=precision, fuse="all", verify=False)
    types = {node.op_type for node in onnx.load(out).graph.node if node.domain == "com.onnxbolt"}
    return {name for name in types if "Norm" in name}


def _passes(source: ModelProto, out: Path) -> None:
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", test_embeddings.FORMS)
def test_embeddings_are_right(form: str, precision: str, tmp_path: Path) -> None:
    build, shape, expected = test_embeddings.FORMS[form]
    source, out = test_embeddings.source_of(build, shape), tmp_path / "out.onnx"
    (found,) = _optimized(source, out, precision)
    assert found.startswith(expected)
    _passes(source, out)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", [form for form in test_tokens.FORMS if form != "embeddings"])
def test_tokens_are_right(form: str, precision: str, tmp_path: Path) -> None:
    build, batch, expected = test_tokens.FORMS[form]
    source, out = test_tokens.source_of(build, batch), tmp_path / "out.onnx"
    found = _optimized(source, out, precision)
    assert {name.rpartition("_")[0] for name in found} == set(expected)
    _passes(source, out)


@pytest.mark.parametrize("element", [onnx.TensorProto.INT32, onnx.TensorProto.INT64])
def test_indices_out_of_range_give_zeros_as_in_onnxruntime(element: int, tmp_path: Path) -> None:
    build, shape, _ = test_embeddings.FORMS["DistilBERT"]
    source = test_embeddings.source_of(build, shape, element=element)
    out = tmp_path / "out.onnx"
    assert len(_optimized(source, out, "keep")) == 1
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    ids = np.random.default_rng(0).integers(-WORDS, WORDS, SHAPE).astype(kind)
    ids[0, :LENGTH] = [WORDS, -WORDS - 1, np.iinfo(kind).max, np.iinfo(kind).min, 0, -1]
    plain = ort.InferenceSession(source.SerializeToString(), providers=[CUDA])
    ours = ort.InferenceSession(out, onnxbolt.session_options(out, strict=True), providers=[CUDA])
    feeds = {given.name: ids for given in ours.get_inputs()}
    expected = plain.run(None, {given.name: ids for given in plain.get_inputs()})[0]
    np.testing.assert_allclose(ours.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)
