"""Pooling has one configuration, as wide as the channels allow."""

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates
from onnxbolt.families.pool import PoolConfig
from onnxbolt.problems import PoolProblem


def test_width_follows_channels() -> None:
    for channels, dtype, width in (
        (64, DType.F16, 8),
        (36, DType.F16, 4),
        (64, DType.F32, 4),
        (5, DType.BF16, 1),
    ):
        (config,) = candidates(PoolProblem(2, 8, 8, channels, 4, 4, dtype, dtype), get(80))
        assert config == PoolConfig(arch=80, access=width)
