"""Padding that differs on all four sides, on a GPU: in each family that takes padding, against
the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxbolt.library import build
from onnxbolt.verify import verify
from tests.gpu.fault_models import prepare
from tests.gpu.padded import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES)
def test_each_side_s_padding_is_its_own(case: str, tmp_path: Path) -> None:
    family, original = CASES[case]
    prepared = prepare(family, original())
    library = tmp_path / "padded.so"
    build(prepared.manifest, library)
    result = verify(
        prepared.original, prepared.optimized, library=library, providers=["CUDAExecutionProvider"]
    )
    assert result.passed, result.text()
