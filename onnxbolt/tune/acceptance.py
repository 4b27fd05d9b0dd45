"""The limits by which the tuner accepts a kernel's results: those of verification's level 2, single
nodes (docs/accuracy.md), in the form that the profiler reads.

The profiler's reference (custom_ops/profiler/reference.cu) computes a bound for each value from
these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MEAN, REQUANTIZE, layers, values_of
from onnxbolt.problems import Problem, Reference
from onnxbolt.verify.limits import FLOOR, TANH, TF32, Arithmetic, published, unit


def limits_of(problem: Problem, reference: Reference) -> list[float]:
    """The numbers for `problem`, in the order in which Describe in profiler.cu reads them."""
    if problem.dtype.is_code:
        return _limits_of_codes(problem, reference)
    element = np.dtype(problem.dtype.numpy)
    arithmetic, inner = Arithmetic(element), reference.averaged_pixels or reference.scored
    # operands of a score are multiplied as TF32; the weights of keys are rounded
    scored = reference.scored > 0
    converted = TF32 if scored and element == np.float32 else 0.0
    output = unit(np.dtype(problem.out.numpy))
    output += unit(element) if reference.rounded_twice else 0.0
    found = [
        arithmetic.rounding(element),
        FLOOR,
        arithmetic.accumulation(inner) + converted if inner else 0.0,
        output,
        unit(element),
    ]
    each = zip(reference.terms, layers(problem.chain), strict=True)
    for i, (count, chain) in enumerate(each):
        steps = tuple(step for step in chain if step != MEAN)
        found += _layer(count, steps, element, behind=scored or i > 0)
    return found


def _limits_of_codes(problem: Problem, reference: Reference) -> list[float]:
    """The same for a product of codes: its steps are computed in fp32, but for what a kernel
    approximates whose result has 16 bits. Codes of the result are compared exactly: they may differ
    where the bound of a value reaches the middle between two."""
    values = np.dtype((DType.F32 if problem.out.is_code else problem.out).numpy)
    steps = published(values, problem.chain) if not problem.out.is_code else 0.0
    arithmetic = Arithmetic(values, published=steps, codes=problem.dtype)
    absolute, relative = arithmetic.approximation
    output = unit(values)
    (terms,) = reference.terms
    stored = values_of(problem.chain)  # the type of values beside codes
    element = output if stored is None else unit(np.dtype(stored.numpy))
    found = [arithmetic.rounding(values), FLOOR, 0.0, output, element]
    found += [arithmetic.accumulation(terms), relative, absolute]
    return found + [
        EPILOGUES[step].accuracy.own
        + (absolute + relative) * _is_rounded(step, problem.chain[i + 1 :], arithmetic)
        for i, step in enumerate(problem.chain)
    ]


def _is_rounded(step: str, behind: Sequence[str], arithmetic: Arithmetic) -> bool:
    """True for an approximate activation of which codes are made within the epilogue: an error
    there moves values by a whole step."""
    element = None if arithmetic.element is None else DType.of(arithmetic.element)
    if element is None or not EPILOGUES[step].accuracy.published(element):
        return False
    return not set(REQUANTIZE.values()).isdisjoint(behind)


def _layer(terms: int, chain: tuple[str, ...], element: np.dtype, behind: bool) -> Iterator[float]:
    """Accumulation, the relative and the absolute error of its last activation, and the error of
    each step.

    What a layer `behind` another one reads was rounded by the kernel and by the reference, each by
    itself (in fp32 to TF32).
    """
    arithmetic = Arithmetic(element, published=published(element, chain))
    handed = max(2 * unit(element), TF32 if element == np.float32 else 0.0) if behind else 0.0
    absolute, relative = arithmetic.approximation
    yield from (arithmetic.accumulation(terms) + handed, relative, absolute)
    for step in chain:
        entry = EPILOGUES[step]
        own = entry.accuracy.own
        by_tanh = TANH in entry.body_operators
        yield arithmetic.function(element, own, TANH if by_tanh else "")
