"""EpilogueStep: all that the package knows of one kind of epilogue step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxbolt.dtypes import DType
from onnxbolt.epilogues.formula import Applied, Formula, Product, X
from onnxbolt.epilogues.patterns import Pattern, Unary

Array = np.ndarray
# emit(op, inputs, **attributes) -> output name; emit("Const", value) -> name of a scalar, or, for a
# tuple of int, of a vector of int64; emit("Given", i) -> name of the step's parameter i, which the
# node gives (`EpilogueStep.given`)
Emit = Callable[..., str]
# (emit, opset, x, operand, parameters) -> y, all tensors by name
Body = Callable[[Emit, int, str, str, tuple[float, ...]], str]

OPERANDS = ("", "vector", "tensor", "weight", "rotation")
# Implementations in fp32 of Sigmoid, Tanh, Erf, Exp and the like, ONNX Runtime's and CUDA's, have
# errors below this for results up to 1.
FUNCTION = 2.0**-21

_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_FUNCTOR = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9_]+\.(h|cuh)")


@dataclass(frozen=True)
class Parameter:
    """A number that a step takes besides its operand, e.g. the slope of LeakyRelu."""

    name: str  # the attribute of the ONNX operator
    default: float  # the ONNX operator's default
    typical: float  # the value with which the tuner measures; times do not depend on it


@dataclass(frozen=True)
class Accuracy:
    """Bounds by which verification and the tuner judge a step (docs/accuracy.md).

    `slope`: the steepest slope of the function; a number, or a function of the parameters. `own`:
    the error of implementations in fp32, absolute for results up to 1 and relative above. `exact`:
    results are operands or constants, so that nothing is rounded. `fp16`, `bf16`: the published
    error of the functor's approximation in kernels with elements of that type, beside rounding; 0
    where it has none (tests/custom_ops/test_pairs.py and test_approximations.py hold them).
    `rounded_factor`: the parameter is a factor of values below zero, which ONNX Runtime's kernels
    for 16 bits round to these.
    """

    slope: float | Callable[..., float] = 1.0
    own: float = 0.0
    exact: bool = False
    fp16: float = 0.0
    bf16: float = 0.0
    rounded_factor: bool = False

    @property
    def approximated(self) -> bool:
        """True if the functor approximates the function for some type of results."""
        return bool(self.fp16 or self.bf16)

    def steepest(self, params: tuple[float, ...]) -> float:
        """The slope for these parameters."""
        return self.slope if isinstance(self.slope, float | int) else self.slope(*params)

    def published(self, dtype: DType) -> float:
        """The published error in kernels with elements of `dtype`."""
        return {DType.F16: self.fp16, DType.BF16: self.bf16}.get(dtype, 0.0)


@dataclass(frozen=True)
class InOrt:
    """How ONNX Runtime's CUDA provider runs the step outside of a fused node.

    `kernels`: elementwise kernels that it launches; more than one if it has no kernel for the whole
    step. `with_bias`: the same kernel adds a bias in front. `all_types`: all releases have 16-bit
    kernels.
    """

    kernels: int = 1
    with_bias: bool = False
    all_types: bool = True


@dataclass(frozen=True)
class Definition:
    """The definition by which the tuner judges kernels with an extension's step: a C++ function in
    fp64, for host and device, `double f(double x, double operand, const float* params)`. Its header
    must not use the functor. Raises ValueError for what names no function or header."""

    function: str  # qualified, as generated code names it
    header: str

    def __post_init__(self) -> None:
        if _FUNCTOR.fullmatch(self.function) is None or _HEADER.fullmatch(self.header) is None:
            raise ValueError(
                f"definition {self.function!r} of {self.header!r}: the name of a C++ function and"
                " of a file without directories are expected"
            )


@dataclass(frozen=True, eq=False)
class EpilogueStep:
    """One kind of step: the ONNX nodes that it is recognized by, its definition in ONNX, C++ and
    numpy, its errors and its costs.

    `functor` is a C++ type, in namespace onnxbolt::epilogue unless it names another one, declared
    by custom_ops/epilogue/steps.h or by `header`; steps without one are built into the kernels.
    `forms` are formulas of a step without operand and parameters. Raises ValueError for an entry
    that contradicts itself.
    """

    name: str
    body: Body
    reference: Callable[..., Array]  # (x, operand or None, *params) in the input's precision
    cost: float  # fp32 instructions per element, for the cost model
    exact_cost: float = 0.0  # those of a kernel that does not approximate it; 0: as many
    functor: str = ""
    header: str = ""  # a file name in the include path, without a directory
    definition: Definition | None = None  # for extensions' steps; others: profiler/steps.h
    operand: str = ""  # one of OPERANDS
    params: tuple[Parameter, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    forms: tuple[Formula, ...] = ()
    accuracy: Accuracy = Accuracy()
    in_ort: InOrt = InOrt()
    cast: DType | None = None  # the element type of the result, if the step converts it
    # True if the step maps a padded channel, which is 0, to a finite value for all constants, so
    # that zero weights of a later product remove it
    finite_at_zero: bool = True
    bounding: bool = False  # results are bounded for every input
    # True if the step multiplies by other columns of the product, to which it adds its operand
    gates: bool = False
    given: bool = False  # True if the body reads the parameters from the node
    stores: bool = False  # True if the result so far is the node's second output
    # the type of values that a product of codes adds or stores beside codes
    values: DType | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"epilogue step {self.name!r}: a name has letters and digits alone")
        if self.functor and _FUNCTOR.fullmatch(self.functor) is None:
            raise ValueError(f"epilogue step {self.name}: {self.functor!r} is no C++ type's name")
        if self.header and (_HEADER.fullmatch(self.header) is None or not self.functor):
            raise ValueError(
                f"epilogue step {self.name}: {self.header!r} is no header of a functor's: give the"
                " file's name without directories"
            )
        if self.operand not in OPERANDS:
            raise ValueError(f"epilogue step {self.name}: no kind of operand is {self.operand!r}")
        if self.forms and (self.operand or self.params):
            raise ValueError(
                f"epilogue step {self.name}: formulas have neither operands nor parameters"
            )
        if not all(isinstance(form, Product | Applied) for form in self.forms):
            raise ValueError(
                f"epilogue step {self.name}: a formula is a product or an operator's result"
            )

        if self.accuracy.approximated and callable(self.accuracy.slope):
            raise ValueError(
                f"epilogue step {self.name}: the slope of an approximated function is a number"
            )

    @property
    def qualified_functor(self) -> str:
        """The functor's type as generated code names it."""
        own = "::" not in self.functor
        return f"onnxbolt::epilogue::{self.functor}" if own else self.functor

    @property
    def activation(self) -> bool:
        """True if the step is a function of single values that kernels compute."""
        return bool(self.functor) and not self.operand and bool(self.patterns or self.forms)

    @cached_property
    def operators(self) -> frozenset[str]:
        """The standard operators that this step recognizes, whatever their attributes."""
        whole = (form for form in self.forms if isinstance(form, Applied))
        return frozenset(
            [
                *(pattern.op for pattern in self.patterns if not pattern.domain),
                *(form.op for form in whole if form == Applied(form.op, X)),
            ]
        )

    @cached_property
    def functions(self) -> frozenset[str]:
        """Those of `operators` that read a single tensor and have their parameters as
        attributes."""
        others = {
            pattern.op
            for pattern in self.patterns
            if not isinstance(pattern, Unary) or pattern.scalars
        }
        return self.operators - others

    @cached_property
    def body_operators(self) -> frozenset[str]:
        """The operators that the body consists of."""
        found: set[str] = set()

        def emit(op: str, inputs: object, **attributes: object) -> str:
            found.add(op)
            return op

        self.body(emit, 20, "x", "operand", tuple(p.default for p in self.params))
        return frozenset(found - {"Const", "Given"})


def unary(op: str, *names: str) -> Body:
    """A body of one standard operator whose attributes are the step's parameters."""
    return lambda emit, opset, x, operand, params: emit(
        op, [x], **dict(zip(names, params, strict=True))
    )


def binary(op: str) -> Body:
    """A body of one standard operator of x and the operand."""
    return lambda emit, opset, x, operand, params: emit(op, [x, operand])
