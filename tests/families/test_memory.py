"""Time in device memory follows the tensors that a problem reads and writes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, EpilogueStep
from onnxbolt.extensions import Extension, register, unregister
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.problems import GemmProblem

PLAIN = dataclasses.replace(EPILOGUES["Relu"], name="Mine", patterns=())
OF_A_TENSOR = dataclasses.replace(EPILOGUES["Add"], name="Mine", patterns=())
PROBLEM = GemmProblem(4096, 1024, 1024, DType.F16, DType.F16, ("Mine",))


@contextlib.contextmanager
def _registered(step: EpilogueStep) -> Iterator[None]:
    extension = Extension(name="mine", epilogues=(step,))
    register(extension)
    try:
        yield
    finally:
        unregister(extension)


def test_an_extension_s_step_is_not_taken_for_another_of_its_name() -> None:
    times = []
    for step in (PLAIN, OF_A_TENSOR, PLAIN):
        with _registered(step):
            times.append(memory_us(PROBLEM, get(90)))
    tensor = PROBLEM.m * PROBLEM.n * 2
    bytes_moved = 2 * tensor + PROBLEM.n * PROBLEM.k * 2
    assert times[0] == times[2] < times[1]
    assert times[1] / times[0] == pytest.approx((bytes_moved + tensor) / bytes_moved)
