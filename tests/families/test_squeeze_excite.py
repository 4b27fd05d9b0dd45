"""Squeeze-and-excitation has one configuration."""

import dataclasses

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.problems import SqueezeExciteProblem

BASE = SqueezeExciteProblem(32, 14, 14, 480, 120, DType.F16, DType.F16, ("Relu", "HardSigmoid"))


def test_one_configuration_on_every_architecture() -> None:
    for number in (75, 80, 90):
        (config,) = candidates(BASE, get(number))
        assert (config.arch, config.family) == (number, named("squeeze_excite"))


def test_too_many_channels_for_shared_memory() -> None:
    assert candidates(dataclasses.replace(BASE, c=100000), get(90)) == ()


def test_few_large_images_take_the_time_of_few_sms() -> None:
    """A cluster of eight of 132 SMs reads 19 MB; where a whole batch is read, all SMs do."""
    arch = get(90)
    one = dataclasses.replace(BASE, n=1, h=184, w=184, c=96, s=24, chain=(*BASE.chain, "Add"))
    many = dataclasses.replace(one, n=32)
    (config,) = candidates(one, arch)
    alone, together = (config.family.predicted_us(p, config, arch) for p in (one, many))
    assert alone > one.onnxruntime_us(arch)
    assert together < 8 * alone
    assert together < many.onnxruntime_us(arch)
