"""The data that each level of verification works on: both models on one execution provider, and
inputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto, TensorProto

from onnxbolt import tolerances
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.dtypes import DType
from onnxbolt.graph.bodies import Body, Left, bodies_of, has_bodies
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.weights import Weights
from onnxbolt.precision import LOW, rounded_apart
from onnxbolt.runtime import OnnxboltWarning, session_options
from onnxbolt.verify import limits, nudges
from onnxbolt.verify.codes import zero_points
from onnxbolt.verify.declared import precision_of
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.result import Row
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS, Runner, identity, uses
from onnxbolt.verify.widen import BFLOAT16, SIXTEEN_BITS, widened

MEMORY_LIMIT = 1 << 30  # bytes of tensors held for comparison at a time
_WIDENED = (
    "bfloat16 tensors were compared as float32, their weights rounded to bfloat16: ONNX Runtime has"
    " practically no bfloat16 kernels for function bodies"
)


@dataclass(frozen=True)
class Models:
    """Both models on one execution provider.

    `library` is None if function bodies run instead of kernels. `notes` collects sentences that a
    user needs to interpret the rows, in order and without repetition.
    """

    # with its own functions inlined: fused nodes name tensors of this form
    original: ModelProto
    optimized: ModelProto
    # runs the original in fp32 with TF32 off, in whatever type its tensors are declared
    reference: Runner
    candidate: Runner  # runs the optimized model
    library: Path | None = None
    elementwise: tuple[float | None, float | None] = (None, None)  # atol, rtol
    inputs_given: bool = False  # True if the user gave inputs, so that none are drawn
    memory_limit: int = MEMORY_LIMIT
    notes: dict[str, None] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> Models:
        """The same with an original that lacks Ifs of known conditions: fused nodes name tensors of
        this form."""
        original, _ = resolved(self.original)
        if original is self.original:
            return self
        return dataclasses.replace(
            self, original=original, reference=reference(original, self.provider, self.notes)
        )

    @cached_property
    def bodies(self) -> list[tuple[Body, Models | str]]:
        """The original's bodies with both models of each; in place of these, why there are none
        although both models have the body. A body whose operator stages took out is missing."""
        (before, _), (after, left) = (_bodies(m) for m in (self.original, self.optimized))
        others = {(body.owner, body.attribute): body for body in after}
        why = {each.place: each.reason for each in left}
        found = list[tuple[Body, Models | str]]()
        for body in before:
            other = others.get((body.owner, body.attribute))
            if other is not None:
                found.append((body, self._of(body.model, other.model)))
            elif body.place in why:
                found.append((body, f"its body cannot be compared: {why[body.place]}"))
            else:
                self.notes[f"{body.place}: the optimized model has no such body"] = None
        return found

    def _of(self, original: ModelProto, optimized: ModelProto) -> Models:
        """The same for the models of a body, whose inputs follow from those around it."""
        return dataclasses.replace(
            self,
            original=original,
            optimized=optimized,
            reference=reference(original, self.provider, self.notes),
            candidate=runner(optimized, self.provider, self.notes, self.library),
            inputs_given=True,
        )

    @cached_property
    def zero_points(self) -> Mapping[str, float]:
        """The zero points of the original's outputs that are codes."""
        return zero_points(self.original)

    @property
    def provider(self) -> str:
        return self.candidate.provider

    @property
    def where(self) -> str:
        """The provider as rows name it: "CPU", "CUDA"."""
        return self.provider.removesuffix("ExecutionProvider")

    @cached_property
    def precision(self) -> str:
        """The optimized model's: "fp16", "bf16" or "keep"."""
        return precision_of(self.original, self.optimized)

    @cached_property
    def dtype(self) -> DType:
        """The type that results are rounded to; an original that is already in 16 bits is judged
        like one that was converted."""
        return LOW.get(self.precision) or _weights_dtype(self.original) or DType.F32

    @property
    def cap(self) -> float:
        """The error of a whole output above which inputs cannot tell right from wrong, if rounding
        alone causes it."""
        return tolerances.JUDGES[self.dtype]

    @property
    def element_cap(self) -> float:
        """The same for an element, relative to its value. TF32 has the significand of fp16."""
        tf32 = self.dtype is DType.F32 and self.library is not None
        return tolerances.JUDGES[DType.F16] if tf32 else self.cap

    @property
    def unit(self) -> float:
        """The unit roundoff of the coarsest arithmetic of the optimized model."""
        tf32 = self.dtype is DType.F32 and self.library is not None
        return limits.TF32 / 2 if tf32 else limits.unit(self.dtype.numpy)

    @cached_property
    def rounded(self) -> Runner | None:
        """The original with the optimized model's roundings: to 16 bits, or to TF32 if our kernels
        multiply in TF32.

        None where nothing rounds.
        """
        rounds = self.precision in LOW or self.library is not None
        return self._rounded(self.original) if rounds or self._in_16_bits else None

    def nudged(self, seed: int) -> Runner:
        """The original with the optimized model's roundings, its weights moved by one more each."""
        return self._rounded(nudges.nudged(self.original, self.unit, seed))

    @property
    def _in_16_bits(self) -> bool:
        return uses(self.original, SIXTEEN_BITS)

    def _rounded(self, original: ModelProto) -> Runner:
        if self.precision in LOW:
            model, large = rounded_apart(original, self.precision)
            return runner(model, self.provider, self.notes, large=large)
        return runner(original, self.provider, self.notes, tf32=self.library is not None)


def _bodies(model: ModelProto) -> tuple[list[Body], list[Left]]:
    if not any(has_bodies(node) for node in model.graph.node):
        return [], []
    graph = import_model(model)
    infer(graph)
    return bodies_of(graph)


Level: TypeAlias = Callable[[Models, Feeds], Iterable[Row]]


def _weights_dtype(model: ModelProto) -> DType | None:
    """The 16-bit type of the model's weights or inputs, None if there is none."""
    types = {t.data_type for t in model.graph.initializer} | {
        value.type.tensor_type.elem_type for value in model.graph.input
    }
    return (
        DType.BF16
        if TensorProto.BFLOAT16 in types
        else DType.F16
        if TensorProto.FLOAT16 in types
        else None
    )


def reference(original: ModelProto, provider: str, notes: dict[str, None]) -> Runner:
    """The original on `provider` without rounding: 16-bit tensors are widened to fp32 if ONNX
    Runtime accepts the result."""
    if not uses(original, SIXTEEN_BITS):
        return Runner(original, provider)
    model, large = widened(original, SIXTEEN_BITS)
    wide = Runner(model, provider, large=large)
    try:
        wide.load()
    except RUNTIME_ERRORS as error:
        notes[
            "the original was compared in its own type, since ONNX Runtime does not load it in"
            f" fp32: {error}"
        ] = None
        return runner(original, provider, notes)
    return wide


def runner(
    model: ModelProto,
    provider: str,
    notes: dict[str, None],
    library: Path | None = None,
    tf32: bool = False,
    large: Weights | None = None,
) -> Runner:
    """`model` on `provider`, with its fused nodes' kernels where there is a library; bfloat16
    without one runs as float32.

    `large` has the data that initializers of the model lack.
    """
    if library is None and uses(model, BFLOAT16):
        notes[_WIDENED] = None
        model, large = widened(model, large=large)
    return Runner(model, provider, library, tf32=tf32 or library is not None, large=large)


def usable(
    library: Path | None, optimized: ModelProto, provider: str, notes: dict[str, None]
) -> Path | None:
    """The library if this machine can use it, else None and a note. Raises LibraryError for another
    model's library."""
    if provider == CPU or library is None:
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OnnxboltWarning)
        session_options(identity(optimized), library=library)
    notes.update(dict.fromkeys(str(warning.message) for warning in caught))
    return None if caught else library
