"""Squeeze-and-excitation has one configuration."""

import dataclasses

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import Family, SqueezeExciteProblem
from onnxbolt.kernels.squeeze_excite import candidates

BASE = SqueezeExciteProblem(32, 14, 14, 480, 120, DType.F16, DType.F16, ("Relu", "HardSigmoid"))


def test_one_for_every_architecture() -> None:
    for number in (75, 80, 90):
        (config,) = candidates(BASE, get(number))
        assert (config.arch, config.family) == (number, Family.SQUEEZE_EXCITE)


def test_too_many_channels_for_shared_memory() -> None:
    assert candidates(dataclasses.replace(BASE, c=100000), get(90)) == ()
