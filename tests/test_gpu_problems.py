"""The problems of the GPU tests, as far as they can be told without a GPU."""

from __future__ import annotations

from tests.gpu.cases import ALL
from tests.gpu.problems import BUILDERS


def test_every_family_has_problems() -> None:
    assert {instance.config.family for instance in ALL} <= BUILDERS.keys()
