"""Each kernel family has a configuration class of its own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import config_from, named
from onnxbolt.families.gemm_2x import Gemm2x, Gemm2xConfig
from onnxbolt.problems import GemmProblem

PROBLEM = GemmProblem(4096, 1024, 1024, DType.F16, DType.F16, ("Bias",))


@dataclass(frozen=True, kw_only=True)
class MineConfig(Gemm2xConfig):
    """As gemm_2x."""


class Borrowing(Gemm2x):
    """A family that forgets to name a configuration class."""

    number = 1000
    name = "mine"


class Mine(Borrowing):
    """The same with one."""

    config = MineConfig


def test_a_configuration_class_belongs_to_one_family() -> None:
    message = "kernel family mine: Gemm2xConfig is the configuration class of family gemm_2x"
    with pytest.raises(ValueError, match=message):
        Borrowing()


def test_a_family_can_extend_another() -> None:
    own, mine = named("gemm_2x"), Mine()
    row = own.candidates(PROBLEM, get(80))[0].row()
    assert config_from(row).family is own
    assert config_from(row).row() == row
    assert mine.decode([*row[:3], 1000, *row[4:]]).family is mine
