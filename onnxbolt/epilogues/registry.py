"""All kinds of epilogue steps: the package's own, one line each, and those of extensions."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from onnxbolt.epilogues import casts, gelu, operands, rectifiers, smooth, structure
from onnxbolt.epilogues.step import EpilogueStep

_OWN = (
    operands.BIAS,
    operands.SCALE,
    operands.PRELU,
    operands.ADD,
    operands.MUL,
    rectifiers.RELU,
    rectifiers.LEAKY_RELU,
    rectifiers.CLIP,
    smooth.SIGMOID,
    smooth.TANH,
    gelu.GELU_ERF,
    gelu.GELU_TANH,
    smooth.SILU,
    rectifiers.HARD_SWISH,
    rectifiers.HARD_SIGMOID,
    smooth.SOFTPLUS,
    smooth.ELU,
    smooth.MISH,
    structure.GEMM,
    structure.STORE,
    structure.MEAN,
    casts.CAST_F32,
    casts.CAST_F16,
    casts.CAST_BF16,
)

_registered = {step.name: step for step in _OWN}
EPILOGUES: Mapping[str, EpilogueStep] = types.MappingProxyType(_registered)

BIAS, SCALE = operands.BIAS.name, operands.SCALE.name
PRODUCT, STORE, MEAN = structure.GEMM.name, structure.STORE.name, structure.MEAN.name
CASTS = {step.cast: step.name for step in _OWN if step.cast is not None}


@dataclass(frozen=True)
class Step:
    """One use of a kind of step."""

    name: str
    params: tuple[float, ...] = ()

    @property
    def row(self) -> EpilogueStep:
        return EPILOGUES[self.name]


def registered() -> tuple[EpilogueStep, ...]:
    """All entries, the package's own first; equal to another call's as long as none is added."""
    return tuple(_registered.values())


def steps_of(op: str) -> tuple[EpilogueStep, ...]:
    """The entries that nodes of a standard operator may be, whatever their attributes."""
    return _by_operator(registered()).get(op, ())


@lru_cache(maxsize=1)
def _by_operator(entries: tuple[EpilogueStep, ...]) -> dict[str, tuple[EpilogueStep, ...]]:
    found: dict[str, tuple[EpilogueStep, ...]] = {}
    for entry in entries:
        for op in entry.operators:
            found[op] = (*found.get(op, ()), entry)
    return found


def register(step: EpilogueStep) -> None:
    """Add an extension's step. Raises ValueError where another one has its name, or is recognized
    by the same nodes or formula."""
    if step.name in _registered:
        raise ValueError(f"epilogue step {step.name} is registered already")
    nodes = {(type(pattern), pattern.op, pattern.domain) for pattern in step.patterns}
    for other in _registered.values():
        same = [p.op for p in other.patterns if (type(p), p.op, p.domain) in nodes]
        if same or set(step.forms) & set(other.forms):
            what = f"nodes {same[0]}" if same else "a formula"
            raise ValueError(
                f"epilogue step {step.name}: {what} would be {other.name}, too. Give it"
                " patterns and forms of its own"
            )
    if step.cast is not None or step.operand == "weight":
        raise ValueError(
            f"epilogue step {step.name}: conversions and products are built into the kernels"
        )
    _registered[step.name] = step


def unregister(name: str) -> None:
    """Take an extension's step away again. Raises ValueError for one of the package's own."""
    if name not in _registered or _registered[name] in _OWN:
        raise ValueError(f"epilogue step {name} is none of an extension's")
    del _registered[name]
