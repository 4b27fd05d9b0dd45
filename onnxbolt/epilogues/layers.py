"""Epilogues as sequences of steps: their layers, and the limits of a kernel."""

from __future__ import annotations

import functools

from onnxbolt.dtypes import DType
from onnxbolt.epilogues.registry import EPILOGUES, PRODUCT, STORE
from onnxbolt.registry import cached

# room of EpilogueArguments and ChainArguments in C++ (codegen/declarations.py)
MAX_VECTORS, MAX_TENSORS, MAX_PARAMS, MAX_LAYERS = 4, 2, 12, 4
# the most steps of an epilogue: more take long to compile, and make op types unreadable
MAX_STEPS = 64


@functools.lru_cache(maxsize=4096)
def layers(steps: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The steps that each layer computes: ("Bias", "Relu", "Store", "Gemm", "Bias") -> (("Bias",
    "Relu"), ("Bias",))."""
    found: list[tuple[str, ...]] = [()]
    for step in steps:
        if step == PRODUCT:
            found.append(())
        elif step != STORE:
            found[-1] += (step,)
    return tuple(found)


def has_inner_residual(steps: tuple[str, ...]) -> bool:
    """True if a layer before the last reads a tensor operand."""
    *inner, _ = layers(steps)
    return any(EPILOGUES[step].operand == "tensor" for layer in inner for step in layer)


def fits_several(steps: tuple[str, ...]) -> bool:
    """True if kernels that store no inner result can compute these steps: parameters of all layers
    share one argument block, residuals stand behind the last layer alone, and no inner result is
    stored."""
    return (
        not has_inner_residual(steps)
        and STORE not in steps
        and sum(len(EPILOGUES[step].params) for step in steps) <= MAX_PARAMS
    )


@cached(maxsize=1024)  # every prediction of a kernel's time asks
def gates(steps: tuple[str, ...]) -> int:
    """The number of steps that multiply by other columns of the product. With one of them it has
    twice the columns of the result."""
    return sum(EPILOGUES[step].gates for step in steps)


def rotates(steps: tuple[str, ...]) -> bool:
    """True if a step rotates pairs of columns by a table."""
    return any(EPILOGUES[step].operand == "rotation" for step in steps)


@cached(maxsize=1024)
def values_of(steps: tuple[str, ...]) -> DType | None:
    """The type of values that the steps of a product of codes add or store beside codes; None
    where there are none. Raises ValueError where there are several."""
    found = {values for step in steps if (values := EPILOGUES[step].values) is not None}
    if len(found) > 1:
        raise ValueError("values beside codes are of several types")
    return next(iter(found), None)


@cached(maxsize=1024)
def epilogue_bytes(steps: tuple[str, ...], dtype: DType) -> int:
    """Bytes that the steps read and store for each element of a result, whose kernel's other
    tensors are of type `dtype`."""
    rows = [EPILOGUES[step] for step in steps]
    return sum((s.values or dtype).bytes for s in rows if s.stores or s.operand == "tensor")


@cached(maxsize=1024)
def tensor_operands(steps: tuple[str, ...]) -> int:
    """The number of steps that read a tensor of the output's size."""
    return sum(EPILOGUES[step].operand == "tensor" for step in steps)
