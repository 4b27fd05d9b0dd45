"""What the GPU tests expect of a resizing is what ONNX Runtime computes."""
from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.resized import SHAPES, ResizeShape, resize
from tests.support import Net, run


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_is_onnx_runtime(shape: ResizeShape) -> None:
    net = Net({"x": (shape.n, shape.c, shape.h, shape.w)})
    y = net.node("Resize", "x", "", net.const([1, 1, *shape.scales]), mode=shape.sampling.mode, nearest_mode=shape.sampling.rounding,
                 coordinate_transformation_mode=shape.sampling.coordinates)
    x = np.random.default_rng(0).standard_normal((shape.n, shape.h, shape.w, shape.c)).astype(np.float32)
    expected, = run(net.model(y), {"x": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})
    np.testing.assert_allclose(resize(x, shape), expected.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
