"""An elementwise chain has one configuration."""

from onnxbolt.families import named, only
from onnxbolt.problems import UNBOUNDED


def test_one_configuration_serves_every_shape() -> None:
    config = only("elementwise", 90)
    assert (config.arch, config.family) == (90, named("elementwise"))
    assert (config.min_m, config.max_m) == (0, UNBOUNDED)
    assert config == config.instance()
