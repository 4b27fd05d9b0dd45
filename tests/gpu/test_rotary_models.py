"""Rotary embeddings in ONNX Runtime on a GPU: every form of tests/match/test_rotations.py, by
segments and nodes. The tests switch on what no plan has yet."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.gpu.prepared import ARCH
from tests.match.test_rotations import FORMS, sizes_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_rotations_are_right(form: str, precision: str, tmp_path: Path) -> None:
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
    types = {node.op_type for node in onnx.load(out).graph.node if node.domain == "com.onnxbolt"}
    assert any(name.startswith("FusedRotary_") for name in types)
    result = verify(source, out, opt_shapes=sizes, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")
