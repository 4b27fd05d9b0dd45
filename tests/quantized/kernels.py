"""A family that solves products of codes, so that they are fused; its kernels are not compiled.
Kernels that move codes are taken as if they had run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from onnxbolt import extensions
from onnxbolt.archs import Arch
from onnxbolt.extensions import Extension
from onnxbolt.families import FAMILIES, named
from onnxbolt.families.base import Family, KernelConfig
from onnxbolt.problems import Problem, QuantizedConvProblem, QuantizedGemmProblem
from tests.support import planned


@dataclass(frozen=True, kw_only=True)
class CodesConfig(KernelConfig):
    """One kernel for all."""


class Codes(Family[CodesConfig]):
    """Takes any product of codes, in no time."""

    number, name, config = 1099, "codes_for_tests", CodesConfig
    problems = (QuantizedGemmProblem, QuantizedConvProblem)
    kinds = frozenset({"quantized_gemm", "quantized_conv"})

    def candidates(self, problem: Problem, arch: Arch) -> tuple[CodesConfig, ...]:
        return (CodesConfig(arch=arch.number),)

    def predicted_us(self, problem: Problem, config: CodesConfig, arch: Arch) -> float:
        return 0.1


class ByChannelConfig(CodesConfig):
    """Another one."""


class ByChannel(Codes):
    """Takes depthwise convolutions of codes, too."""

    number, name, config = 1098, "codes_by_channel_for_tests", ByChannelConfig
    by_channel = True

    def candidates(self, problem: Problem, arch: Arch) -> tuple[CodesConfig, ...]:
        return (ByChannelConfig(arch=arch.number),)


EXTENSION = Extension(name="codes_for_tests", families=(Codes(),))
BY_CHANNEL = Extension(name="codes_by_channel_for_tests", families=(ByChannel(),))


@contextmanager
def absent() -> Iterator[None]:
    """Without the kernels of sm_90a for products of codes."""
    with ExitStack() as stack:
        for name in ("quantized_gemm_sm90", "quantized_conv_sm90"):
            stack.enter_context(planned(named(name), measured=False))
        yield


@contextmanager
def registered() -> Iterator[None]:
    """With kernels for products of codes."""
    extensions.register(EXTENSION)
    try:
        yield
    finally:
        extensions.unregister(EXTENSION)


@contextmanager
def by_channel() -> Iterator[None]:
    """With kernels for depthwise convolutions of codes, whether these have run on a GPU or not."""
    extensions.register(BY_CHANNEL)
    try:
        yield
    finally:
        extensions.unregister(BY_CHANNEL)


@contextmanager
def moving() -> Iterator[None]:
    """With kernels that take codes in place of values, whether these have run on a GPU or not."""
    waiting = [f for f in FAMILIES.values() if f.codes and not f.codes_measured]
    for family in waiting:
        family.codes_measured = True
    try:
        yield
    finally:
        for family in waiting:
            family.codes_measured = False
