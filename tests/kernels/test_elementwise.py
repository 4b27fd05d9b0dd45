"""An elementwise chain has one configuration."""

from onnxbolt.kernels.config import UNBOUNDED, Family
from onnxbolt.kernels.elementwise import config


def test_one_configuration_serves_every_shape() -> None:
    row = config(90)
    assert (row.arch, row.family, row.min_m, row.max_m) == (90, Family.ELEMENTWISE, 0, UNBOUNDED)
    assert row == row.instance()
