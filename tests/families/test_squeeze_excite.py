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
