"""A fused op with its problem, its kernel family and its part of the library."""

from __future__ import annotations

from pathlib import Path

from onnxbolt.extensions import Extension
from tests.extending.softmax.family import RowSoftmax
from tests.extending.softmax.op import ScaledSoftmax

_HERE = Path(__file__).parent
SCALED_SOFTMAX, ROW_SOFTMAX = ScaledSoftmax(), RowSoftmax()
EXTENSION = Extension(
    name="softmax",
    ops=(SCALED_SOFTMAX,),
    families=(ROW_SOFTMAX,),
    include_dirs=(_HERE / "include",),
    sources=(_HERE / "scaled_softmax.cc",),
)
