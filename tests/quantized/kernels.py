"""A family that solves all products of codes, so that they are fused; its kernels are not compiled.
And planning without kernels of codes."""

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


EXTENSION = Extension(name="codes_for_tests", families=(Codes(),))


@contextmanager
def absent() -> Iterator[None]:
    """Without the kernels for products of codes."""
    with ExitStack() as stack:
        for name in ("quantized_gemm_sm90", "quantized_conv_sm90", "quantized_depthwise"):
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
def beside() -> Iterator[None]:
    """With products of codes that add values, and write their result as values, too."""
    (family,) = EXTENSION.families
    family.moves_values = True
    try:
        yield
    finally:
        family.moves_values = False


@contextmanager
def unmoved() -> Iterator[None]:
    """As if no kernel that takes codes in place of values had run on a GPU."""
    able = [f for f in FAMILIES.values() if f.codes and f.codes_measured]
    for family in able:
        family.codes_measured = False
    try:
        yield
    finally:
        for family in able:
            family.codes_measured = True
