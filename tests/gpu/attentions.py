"""The problems on which the GPU tests run kernels of attention."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.epilogues import EPILOGUES, QUANTIZE
from onnxbolt.integers import round_up
from onnxbolt.ops.attention.attributes import attributes
from onnxbolt.ops.attention.found import Masked, Masking
from tests.gpu.attention_cases import is_resident, served
from tests.gpu.cases import PARAMS
from tests.gpu.device import (
    Attention,
    CodedAttention,
    HeadsView,
    Library,
    ScoreMask,
    Tensor,
    Windows,
)
from tests.gpu.operands import Problem
from tests.gpu.reference import rounded
from tests.ops.attention_cases import Case

GAP = 16  # elements of poison between rows
_SHORT, _FEW = 257, 4  # positions of a short case, and how many of them a tool has
_MANY = 1500  # batches of which each block of a GPU with up to 187 SMs takes several
_FAR = 1e6  # a value beyond all codes
_SAME = 0.9  # the part of all codes that are those of float64, at least
_CHECKED = 64  # queries of a long sequence that are compared, beside the first and last ones


@dataclass
class AttentionProblem(Problem):
    """`queries` are those whose answer `expected` has, as [batch, queries, heads x size]."""

    queries: tuple[int, ...] = ()

    def answer(self) -> np.ndarray:
        """The kernel's answer for these queries."""
        return self.output.read()[:, list(self.queries)]


def problem(
    library: Library, case: Case, gap: int = GAP, seed: int = 0, out: DType | None = None
) -> AttentionProblem:
    """A case with random inputs, `gap` elements of poison between rows. `out`: the type of the
    result, the case's by default."""
    out = out or case.dtype
    drawn = case.draw(zlib.crc32(repr((case, seed)).encode()))
    for name in drawn.keys() - {"mask"}:
        drawn[name] = rounded(drawn[name], case.dtype).astype(np.float32)
    tensors = {name: _tensor(library, case, name, drawn[name], gap) for name in drawn}
    y = np.zeros((case.batch, case.queries, case.heads * case.value_size), out.numpy)
    rows = case.queries
    if case.windows:
        y, rows = case.windows.image(y, case.image_axes), case.windows.pixels
    output = Tensor(library, y, gap, empty=True)
    arguments = (CodedAttention if out.is_code else Attention)(
        *(case.batch, case.heads, case.key_heads, case.queries, case.keys),
        *(case.size, case.value_size, case.scale),
        *(_view(case, name, tensors) for name in "qkv"),
        HeadsView(output.pointer, rows * output.pitch, output.pitch, case.value_size),
        _mask(case, tensors.get("mask")),
        list(Masked).index(case.masked),
        *case.limits,
        Windows(*(case.windows.numbers if case.windows else ())),
    )
    if out.is_code:
        arguments.epilogue.params[:2] = PARAMS[QUANTIZE[out]]
    kept = tuple(tensors.values())
    if case.windows:  # all pixels are compared
        return AttentionProblem(arguments, output, case.answer(drawn), kept, tuple(range(rows)))
    queries = _queries(case, np.random.default_rng(seed))
    return AttentionProblem(arguments, output, case.answer(drawn, queries), kept, tuple(queries))


def problems(library: Library, instance: Instance) -> list[AttentionProblem]:
    """Short cases of the instance, for tools that take long. What a row without keys or only some
    queries have is compared by test_attention.py alone."""
    arch = instance.config.arch
    kernel = next(each for each in served(arch) if each.instance == instance)
    by_length = sorted(
        (case for _, case in kernel.cases), key=lambda case: max(case.queries, case.keys)
    )
    short = [case for case in by_length if max(case.queries, case.keys) <= _SHORT] or by_length[:1]
    chosen = short[-_FEW:]
    if is_resident(kernel):
        chosen = [*chosen, repeated(short[-1])]
    found = [problem(library, case, out=instance.out) for case in chosen]
    for made in found:
        expected = made.expected
        if (
            instance.out.is_code
            or expected is None
            or expected.shape != made.output.shape
            or np.isnan(expected).any()
        ):
            made.expected = None
    return found


def repeated(case: Case) -> Case:
    """A case of a resident kernel with so many batches that its blocks take several, the next one
    in the place of the last but one."""
    return replace(case, batch=round_up(_MANY, case.batch))


def error(found: AttentionProblem) -> float:
    """The largest of the relative L2 errors of all queries, and of one query's part of that which
    an eighth may have; infinite where NaNs or infinities are elsewhere."""
    answer, expected = found.answer(), found.expected
    assert expected is not None
    if code := DType.of_codes(answer.dtype):
        answer, expected = _decoded(answer, expected, code)
    answer = answer.astype(np.float64)
    if not np.array_equal(np.isfinite(answer), np.isfinite(expected)):
        return float("inf")
    wrong, right = (
        np.linalg.norm(np.nan_to_num(values), axis=-1) for values in (answer - expected, expected)
    )
    whole = float(np.linalg.norm(wrong) / (np.linalg.norm(right) or 1.0))
    rows = wrong / np.where(right > 0, right, 1.0)
    return max(whole, float(rows.max()) / 8)


def _decoded(
    codes: np.ndarray, expected: np.ndarray, dtype: DType
) -> tuple[np.ndarray, np.ndarray]:
    """The values of codes, moved towards `expected` by the half of a step that rounding may take
    away, and `expected` within the range of codes. NaN is the zero point of integers. The values
    are infinite where too many codes differ from the nearest ones."""
    scale, zero = PARAMS[QUANTIZE[dtype]]
    if dtype in INTEGERS:
        expected = np.nan_to_num(expected, nan=0.0)
    quantize = EPILOGUES[QUANTIZE[dtype]].reference
    least, most = (quantize(np.array([-_FAR, _FAR]), None, scale, zero) - zero) * scale
    expected = np.clip(expected, least, most)
    nearest = quantize(expected, None, scale, zero).astype(dtype.numpy)
    steps = codes.astype(np.float64) - zero
    if np.mean((codes == nearest) | ~np.isfinite(steps)) < _SAME:
        return np.full(steps.shape, np.inf), expected
    half = 0.5 if dtype in INTEGERS else np.maximum(np.abs(steps) / 16, 2.0**-10)
    apart = expected / scale - steps
    return (steps + np.clip(apart, -half, half)) * scale, expected


def _queries(case: Case, rng: np.random.Generator) -> list[int]:
    """All queries of a short sequence, else both ends and some between."""
    count = case.queries
    if count <= 2 * _CHECKED:
        return list(range(count))
    between = rng.choice(np.arange(8, count - 8), _CHECKED, replace=False)
    return sorted([*range(8), *map(int, between), *range(count - 8, count)])


def _tensor(library: Library, case: Case, name: str, values: np.ndarray, gap: int) -> Tensor:
    """An input on the device; masks are dense."""
    if name == "mask":
        added = case.masking is Masking.ADDED
        return Tensor(library, values.astype(case.mask_type.numpy if added else np.uint8))
    if _in_rows(case, name) and values.ndim == 4:
        values = values.reshape(*values.shape[:2], -1)
    return Tensor(library, values.astype(case.dtype.numpy), gap)


def _in_rows(case: Case, tensor: str) -> bool:
    """True unless the tensor has heads in front of positions."""
    found = case.attention()
    views = (found.q, found.k, found.v)
    return any(view.tensor.name == tensor and view.order == "bshd" for view in views)


def _view(case: Case, name: str, tensors: Mapping[str, Tensor]) -> HeadsView:
    """Queries, keys or values within their tensor."""
    found = case.attention()
    view = {"q": found.q, "k": found.k, "v": found.v}[name]
    tensor = tensors[view.tensor.name]
    batch = 0 if view.batch == 1 else tensor.pitch
    if view.order == "bhsd":
        positions = case.queries if name == "q" else case.keys
        strides = batch * view.heads * positions, tensor.pitch, positions * tensor.pitch
        return HeadsView(tensor.pointer, *strides)
    first, lead, pitch = view.first, view.lead, view.pitch
    begin = (first * pitch + lead) * case.dtype.bytes
    return HeadsView(tensor.pointer + begin, batch * view.positions, tensor.pitch, pitch)


def _mask(case: Case, tensor: Tensor | None) -> ScoreMask:
    """The mask with its strides, 0 along axes of one value."""
    if tensor is None:
        return ScoreMask()
    strides, stride = list[int](), 1
    for size in reversed(case.mask_shape):
        strides.insert(0, 0 if size == 1 else stride)
        stride *= size
    strides = [0] * (4 - len(strides)) + strides
    kind = attributes(case.attention())["masking"]
    fp32 = case.masking is Masking.ADDED and case.mask_type is DType.F32
    return ScoreMask(kind, fp32, tensor.pointer, *strides, case.period)
