"""All kinds of epilogue steps: the package's own, one line each, and those of extensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from onnxbolt.epilogues import casts, codes, gelu, operands, rectifiers, smooth, structure
from onnxbolt.epilogues.step import EpilogueStep
from onnxbolt.registry import Registry, cached

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
    gelu.QUICK_GELU,
    smooth.SILU,
    rectifiers.HARD_SWISH,
    rectifiers.HARD_SIGMOID,
    smooth.SOFTPLUS,
    smooth.ELU,
    smooth.MISH,
    structure.GEMM,
    structure.STORE,
    structure.MEAN,
    structure.GATE,
    structure.GATE_BIAS,
    structure.ROTATE,
    *codes.STEPS,
    casts.CAST_F32,
    casts.CAST_F16,
    casts.CAST_BF16,
)


class _Steps(Registry[str, EpilogueStep]):
    """Steps by name; no two are recognized by the same nodes or formula."""

    def add(self, entry: EpilogueStep, owner: str) -> None:
        if owner:
            _check(entry, self.values())
        super().add(entry, owner)


def _check(step: EpilogueStep, others: Iterable[EpilogueStep]) -> None:
    """Raises ValueError for a step that no extension can add."""
    if step.cast is not None or step.operand == "weight":
        raise ValueError(
            f"epilogue step {step.name}: conversions and products are built into the kernels"
        )
    nodes = {(type(pattern), pattern.op, pattern.domain) for pattern in step.patterns}
    for other in others:
        if step.name != other.name and step.name.lower() == other.name.lower():
            raise ValueError(
                f"epilogue step {step.name}: names of kernels, which are in lower case, would not"
                f" tell it from {other.name}. Give it another name"
            )
        same = [p.op for p in other.patterns if (type(p), p.op, p.domain) in nodes]
        if same or set(step.forms) & set(other.forms):
            what = f"nodes {same[0]}" if same else "a formula"
            raise ValueError(
                f"epilogue step {step.name}: {what} would be {other.name}, too. Give it"
                " patterns and forms of its own"
            )


EPILOGUES: Registry[str, EpilogueStep] = _Steps("epilogue step", _OWN, "name")

BIAS, SCALE = operands.BIAS.name, operands.SCALE.name
ADD, MUL = operands.ADD.name, operands.MUL.name
PRODUCT, STORE, MEAN = structure.GEMM.name, structure.STORE.name, structure.MEAN.name
GATE, GATE_BIAS = structure.GATE.name, structure.GATE_BIAS.name
ROTATE = structure.ROTATE.name
# conversions that are no function of the value
CASTS = {step.cast: step.name for step in _OWN if step.cast is not None and not step.functor}
DEQUANTIZE = codes.DEQUANTIZE.name
DECODE, ADD_CODES, MUL_CODES, REQUANTIZE, QUANTIZE = (
    {dtype: step.name for dtype, step in steps.items()}
    for steps in (
        codes.DECODE,
        codes.ADD_CODES,
        codes.MUL_CODES,
        codes.REQUANTIZE,
        codes.QUANTIZE,
    )
)
ADD_VALUES, STORE_VALUES = (
    {dtype: step.name for dtype, step in steps.items()}
    for steps in (codes.ADD_VALUES, codes.STORE_VALUES)
)


@dataclass(frozen=True)
class Step:
    """One use of a kind of step."""

    name: str
    params: tuple[float, ...] = ()

    @property
    def row(self) -> EpilogueStep:
        return EPILOGUES[self.name]

    @property
    def of_type(self) -> Step:
        """The step as op types have it: without numbers that bodies read from the node."""
        return Step(self.name) if self.row.given else self


@cached(1)
def registered() -> tuple[EpilogueStep, ...]:
    """All entries, the package's own first; equal to an earlier call's result unless entries were
    added or removed."""
    return tuple(EPILOGUES.values())


def steps_of(op: str) -> tuple[EpilogueStep, ...]:
    """The steps that a node of this standard operator may be, whatever its attributes."""
    return _by_operator(registered()).get(op, ())


@lru_cache(maxsize=1)
def _by_operator(entries: tuple[EpilogueStep, ...]) -> dict[str, tuple[EpilogueStep, ...]]:
    found: dict[str, tuple[EpilogueStep, ...]] = {}
    for entry in entries:
        for op in entry.operators:
            found[op] = (*found.get(op, ()), entry)
    return found
