"""Pooling has one configuration, as wide as the channels allow."""

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import Family
from onnxbolt.kernels.pool import PoolProblem, candidates


def test_width_follows_channels() -> None:
    for channels, dtype, width in (
        (64, DType.F16, 8),
        (36, DType.F16, 4),
        (64, DType.F32, 4),
        (5, DType.BF16, 1),
    ):
        (config,) = candidates(PoolProblem(2, 8, 8, channels, 4, 4, dtype), get(80))
        assert (config.family, config.align_a, config.align_c) == (Family.POOL, width, width)
