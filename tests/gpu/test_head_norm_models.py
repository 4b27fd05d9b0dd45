"""Normalizations of queries' and keys' heads in ONNX Runtime on a GPU: every form of
tests/match/test_head_norms.py, by segments and nodes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.gpu.prepared import ARCH
from tests.match.test_head_norms import FORMS, sizes_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_heads_are_right(form: str, precision: str, tmp_path: Path) -> None:
    source, out = FORMS[form](), tmp_path / "out.onnx"
    sizes = sizes_of(source)
    onnxbolt.optimize(
        source,
        out,
        archs=(ARCH,),
        precision=precision,
        fuse="all",
        opt_shapes=sizes,
        verify=False,
    )
    types = [node.op_type for node in onnx.load(out).graph.node if node.domain == "com.onnxbolt"]
    assert sum(name.startswith(("HeadRmsNorm_", "HeadLayerNorm_")) for name in types) == 2
    result = verify(source, out, opt_shapes=sizes, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")
