"""Faults that a compiled kernel could have, as edits of the sources: custom_ops/ with one of them
is compiled in place of the real one.

An edit names text, not lines; a test checks that each text still stands where it is looked for,
once. Rows are GEMM rows, or pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onnxbolt.families import FAMILIES, Family, named

K_BLOCK = "last k-block left out"
PIXEL = "one pixel of 16,384 is zero"
BIAS = "one tile without bias"
SWAP = "two channels swapped"
ELEMENT = "one element of 100,000 random"
STALE = "a stale tile"
KINDS = (K_BLOCK, PIXEL, BIAS, SWAP, ELEMENT, STALE)


@dataclass(frozen=True)
class Edit:
    """`old` stands once in `file`, a path in custom_ops/."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One fault of one family's kernels."""

    family: Family[Any]
    kind: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Store:
    """The place in a kernel's C++ source where its results are ready to be stored, and the names of
    row and channel there.

    `value` is the i-th of `count` results there, `row` and `column` are its coordinates.
    """

    file: str
    old: str
    new: str  # the same with {code} where results may be changed
    value: str
    count: str
    row: str
    column: str
    element: str = "Output"
    period: int = 1563  # rows that have 100,000 values

    def faults(self) -> Iterator[tuple[str, Edit]]:
        zero = f"{self.element}(0.f)"
        yield PIXEL, self._changed(f"(faulty_row) % 16384 == 77) {self.value} = {zero};")
        noise = f"{self.element}(float((faulty_row) * 7919 % 1009) / 500.f - 1.f)"
        yield (
            ELEMENT,
            self._changed(
                f"(faulty_row) % {self.period} == 66 && (faulty_column) == 2)"
                f" {self.value} = {noise};"
            ),
        )

    def _changed(self, condition: str) -> Edit:
        code = (
            f"for (int i = 0; i < {self.count}; ++i) {{ [[maybe_unused]] const int64_t faulty_row ="
            f" {self.row}, faulty_column = {self.column}; if ({condition} }}"
        )
        return Edit(
            self.file, self.old, self.new.replace("{code}", f'\n_Pragma("unroll")\n{code}\n')
        )


def _swap(store: Store, condition: str, pairs: tuple[tuple[int, int], ...] = ((0, 1),)) -> Edit:
    """Exchanges results of two channels where `condition` says that they are these.

    The copies name their type: what indexing a cutlass::Array of 16-bit elements answers is a
    reference, which `auto` would keep.
    """
    named = [
        (store.value.replace("[i]", f"[{i}]"), store.value.replace("[i]", f"[{j}]"))
        for i, j in pairs
    ]
    moves = " ".join(
        f"{{ const {store.element} kept = {one}, other = {other}; {one} = other; {other} = kept; }}"
        for one, other in named
    )
    return Edit(
        store.file, store.old, store.new.replace("{code}", f"\nif ({condition}) {{ {moves} }}\n")
    )


# --- the epilogue of our sm_90a kernels: a thread has two columns of two rows, eight apart, in each
# block of eight columns

_FINISHED = (
    "      const auto rounded = Chain::template finish<Output>(x, operands, operands_.params);\n"
)
_IN_UNIT = "unit_row + first_row() + i % 4 / 2 * 8"
SM90 = Store(
    "sm90/epilogue.h",
    _FINISHED,
    _FINISHED.replace("const auto", "auto") + "{code}",
    "rounded[i]",
    "decltype(rounded)::kElements",
    f"to.row + {_IN_UNIT}",
    "to.column + unit_column + column + i / 4 * 8 + thread_ % 4 * 2 + i % 2",
)
# its tiles are four rows of sixteen pixels of an image that is 128 wide
IMAGE = replace(
    SM90, row=f"(to.row + ({_IN_UNIT}) / 16) * 128 + to.pixel_column + ({_IN_UNIT}) % 16"
)
_VECTORS = "    read_vectors<kCount>(operands, tile_column);\n"
_STAGED = "if constexpr (Shape::kStores) write_staged<"


def _sm90(store: Store, tile: str) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """`tile`: the condition of one tile of 64 rows."""
    yield from ((kind, (edit,)) for kind, edit in store.faults())
    yield (
        SWAP,
        (_swap(store, "to.column + unit_column + column + thread_ % 4 == 0", ((0, 1), (2, 3))),),
    )
    yield (
        BIAS,
        (Edit(store.file, _VECTORS, f"{_VECTORS}    if ({tile}) operands.vectors[0].clear();\n"),),
    )
    yield (
        STALE,
        (Edit(store.file, _STAGED, f"if constexpr (Shape::kStores) if (!({tile})) write_staged<"),),
    )


def _matrix() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    return _sm90(SM90, "to.row + unit_row == 128")


def _image() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    return _sm90(IMAGE, "to.row == 8 && to.pixel_column == 16")


# --- kernels of codes: sums are what may be changed; a thread has two columns of two rows, or four
# neighbouring ones where results have 8 bits

_SUMS = "    typename Chain::template Operands<kCount> operands;\n    if constexpr (kPairs)\n"
_READ_CODES = "    if constexpr (Chain::kReadsValues)\n"
_WRITE_CODES = "write_codes<kColumns>(buffer, Column, Chain::pack(y, packer_));"
CODES = Store(
    "sm90/codes.h",
    _SUMS,
    "{code}" + _SUMS,
    "x[i]",
    "kCount",
    "to.row + unit_row + this->first_row() + 8 * row_of(i)",
    "to.column + tile_column + column_of(i) + place_of(i)",
    element="float",
)


def _codes() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    tile = "to.row + unit_row == 128"
    yield from ((kind, (edit,)) for kind, edit in CODES.faults())
    swapped = "to.column + tile_column + this->thread_ % 4 == 0"
    yield SWAP, (_swap(CODES, swapped, ((0, 1), (2, 3))),)
    cleared = f"    if ({tile}) operands.vectors[1].clear();\n"
    yield BIAS, (Edit(CODES.file, _READ_CODES, cleared + _READ_CODES),)
    kept = f"{{ if (!({tile})) {_WRITE_CODES} }}"
    yield STALE, (Edit(CODES.file, _WRITE_CODES, kept),)


_PERSISTENT = (
    "multiply_rows(sums, 0, K::kBlocks, stage_.stage, K::kIsResident ? block : stage_.stage, block"
    " > range_.first);"
)
_APART = (
    "multiply_rows(sums, m, m + 1, at.stage, K::kIsResident ? block : at.stage, block >"
    " range_.first);"
)
PERSISTENT_K = (
    Edit("sm90/consumer.h", _PERSISTENT, f"if (block + 1 < range_.end) {_PERSISTENT}"),
    Edit("sm90/consumer.h", _APART, f"if (i > 1) {_APART}"),
)

# --- CUTLASS 2.x with a chain as visitor

_FINISH_2X = (
    "Chain::template finish<Output>(Fragment(accumulator), operands, params->operands.params)"
)
_VISIT = f"      if (contains(coordinate)) store(coordinate, {_FINISH_2X});\n"
_M = "cute::get<0>(coordinate)"
_VISIT_IN_STEPS = (
    f"      auto result = {_FINISH_2X};\n{{code}}      if (contains(coordinate)) store(coordinate,"
    " result);\n"
)
VISITOR_2X = Store(
    "mma/visitor.h",
    _VISIT,
    _VISIT_IN_STEPS,
    "result[i]",
    "kAccess",
    _M,
    "channel(coordinate) + i",
)


def _visitor_2x() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file = VISITOR_2X.file
    yield from ((kind, (edit,)) for kind, edit in VISITOR_2X.faults())
    yield SWAP, (_swap(VISITOR_2X, "channel(coordinate) == 0"),)
    yield (
        BIAS,
        (Edit(file, _VISIT, f"      if ({_M} / 64 == 2) operands.vectors[0].clear();\n{_VISIT}"),),
    )
    yield (
        STALE,
        (
            Edit(
                file,
                _VISIT,
                _VISIT.replace(
                    "if (contains(coordinate))", f"if (contains(coordinate) && {_M} / 64 != 2)"
                ),
            ),
        ),
    )


# --- CUTLASS 3.x: a visit has some of a thread's accumulators, which lie as wgmma leaves them

_VISIT_3X = "      return Chain::template finish<Output>(accumulator, operands, params->params);\n"
_BLOCK_3X = "(blockIdx.x + blockIdx.y * gridDim.x)"  # the scheduler lays the grid along either axis
_SIGNATURE = "const cutlass::Array<Accumulator, N>& accumulator, int, int, int, const cutlass"
_NAMED = Edit(
    "sm90/visitor_3x.h",
    _SIGNATURE,
    _SIGNATURE.replace("int, int, int", "int visited, int block_m, int block_n"),
)


def _changed_3x(code: str) -> tuple[Edit, ...]:
    new = (
        "      auto result = Chain::template finish<Output>(accumulator, operands,"
        f" params->params);\n      {code}\n      return result;\n"
    )
    return _NAMED, Edit(_NAMED.file, _VISIT_3X, new)


def _visitor_3x() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    yield (
        PIXEL,
        _changed_3x(
            f"if ({_BLOCK_3X} == 3 && block_m == 0 && threadIdx.x % 128 / 4 == 9) "
            "for (int i = 0; i < N; ++i) if (i % 4 < 2) result[i] = Output(0.f);"
        ),
    )
    yield (
        ELEMENT,
        _changed_3x(
            f"if ({_BLOCK_3X} % 13 == 3 && threadIdx.x == 165 && visited + block_m + block_n == 0) "
            f"result[0] = Output({_BLOCK_3X} / 64.f - 1.f);"
        ),
    )
    yield (
        SWAP,
        _changed_3x(
            "if (visited + block_n == 0 && threadIdx.x % 4 == 0) "
            "{ const Output kept = result[0], other = result[1];"
            " result[0] = other; result[1] = kept; }"
        ),
    )
    yield (
        BIAS,
        (
            Edit(
                _NAMED.file,
                _VISIT_3X,
                f"      if ({_BLOCK_3X} == 3) operands.vectors[0].clear();\n{_VISIT_3X}",
            ),
        ),
    )
    size = "int(gemm.n), int(gemm.k), 1};"
    yield (
        K_BLOCK,
        (
            Edit(
                "families/gemm_3x/kernel.h", size, "int(gemm.n), int(gemm.k) - Row::at(kTileK), 1};"
            ),
        ),
    )


# --- halo convolutions: accesses of eight channels of a pixel

_WRITE = "params_.y_pitch) + part * 128) = result.parts[i][part];"
_SKIP = "        if (result.pixels[i] == kNowhere || channel >= end_) continue;\n"
_FINISH_HALO = (
    "    return Chain::template finish<Output>(values, operands, params_.epilogue.params);\n"
)
_READ_HALO = "    vectors_.read(operands);\n"


def _halo() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, at = "sm90/halo/epilogue.h", "(first_ + result.pixels[i])"
    yield (
        PIXEL,
        (
            Edit(
                file,
                _WRITE,
                _WRITE.replace("result.parts", f"{at} % 16384 == 77 ? uint4{{}} : result.parts"),
            ),
        ),
    )
    noise = f"__float2half(float({at} * 7919 % 1009) / 500.f - 1.f)"
    changed = (
        f"auto values = result.parts[i][part]; if ({at} % 1563 == 66 && channel == 0)"
        " reinterpret_cast<__half*>(&values)[2]"
    )
    write = (
        "*reinterpret_cast<uint4*>(y_ + row_offset<Output>(result.pixels[i], params_.y_pitch) +"
        " part * 128)"
    )
    yield (
        ELEMENT,
        (
            Edit(
                file, f"{write} = result.parts[i][part];", f"{changed} = {noise}; {write} = values;"
            ),
        ),
    )
    yield (
        SWAP,
        (
            Edit(
                file,
                _FINISH_HALO,
                _FINISH_HALO.replace("return", "const Results y =")
                + "    if (channel_ != 0 || LaneChannel() != 0) return y;\n"
                "    Results exchanged;\n"
                "    for (int i = 0; i < 4; ++i) exchanged[i] = y[(i + 2) % 4];\n"
                "    return exchanged;\n",
            ),
        ),
    )
    yield (
        BIAS,
        (
            Edit(
                file,
                _READ_HALO,
                f"{_READ_HALO}    if (blockIdx.x == 5) operands.vectors[0].clear();\n",
            ),
        ),
    )
    yield STALE, (Edit(file, _SKIP, _SKIP.replace("if (", "if (blockIdx.x == 5 || ")),)
    steps = "    for (int step = 0; step < kSteps; ++step) {\n"
    yield K_BLOCK, (Edit("sm90/halo/consumer.h", steps, steps.replace("kSteps", "kSteps - 1")),)


# --- kernels whose threads store neighbouring channels of a pixel themselves

_DEPTHWISE_STORE = "      *reinterpret_cast<Access<Output, kWidth>*>(y) = result;\n"
DEPTHWISE = Store(
    "channelwise/tile.h",
    _DEPTHWISE_STORE,
    "{code}" + _DEPTHWISE_STORE,
    "result[i]",
    "kWidth",
    "pixel + q",
    "place.channel + i",
)
_POOL_STORE = "    *reinterpret_cast<Result*>(static_cast<Output*>(pool.y) + int64_t(window.pixel)"
POOL = Store(
    "families/pool/kernel.h",
    _POOL_STORE,
    "{code}" + _POOL_STORE,
    "result[i]",
    "Width",
    "window.pixel",
    "group * Width + i",
)
_ELEMENTWISE_STORE = (
    "      *reinterpret_cast<Result*>(static_cast<Output*>(params.y) + row * params.y_pitch +"
    " channel) =\n          y;\n"
)
ELEMENTWISE = Store(
    "families/elementwise/kernel.h",
    _ELEMENTWISE_STORE,
    "{code}" + _ELEMENTWISE_STORE,
    "y[i]",
    "Width",
    "row",
    "channel + i",
)
_LAYOUT_STORE = "    if (pixel < params.pixels) store(y + int64_t(pixel) * params.stored"
LAYOUT = Store(
    "families/layout/kernel.h",
    _LAYOUT_STORE,
    "{code}" + _LAYOUT_STORE,
    "values[i]",
    "kWrite",
    "pixel",
    "channel + i",
)
_SHUFFLE_STORE = "  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(shuffle.y) +\n"
SHUFFLE = Store(
    "families/pixel_shuffle/kernel.h",
    _SHUFFLE_STORE,
    "{code}" + _SHUFFLE_STORE,
    "result[i]",
    "Width",
    "place.pixel",
    "place.channel + i",
)
_SAMPLE_STORE = "  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(sample.y) +\n"
SAMPLE = Store(
    "families/grid_sample/kernel.h",
    _SAMPLE_STORE,
    "{code}" + _SAMPLE_STORE,
    "result[i]",
    "Width",
    "row",
    "channel + i",
)
_RESIZE_STORE = "  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(resize.y) +\n"
RESIZE = Store(
    "families/resize/kernel.h",
    _RESIZE_STORE,
    "{code}" + _RESIZE_STORE,
    "result[i]",
    "Width",
    "pixel",
    "group * Width + i",
)
_GATED_STORE = "      *y_at(pixel, channel) = y;\n"
SQUEEZE_EXCITE = Store(
    "families/squeeze_excite/block.h",
    _GATED_STORE,
    "{code}" + _GATED_STORE,
    "y[i]",
    "Width",
    "pixel",
    "first_channel + channel + i",
    "Element",
)
_NORM_STORE = (
    "        norm::Store<T::kHint>(at<Result>(params_.y, row(b), v, params_.y_pitch), y);\n"
)
NORM = Store(
    "families/norm/rows.h",
    _NORM_STORE,
    "{code}" + _NORM_STORE,
    "y[i]",
    "T::kWidth",
    "row(b)",
    "(v * T::kLanes + lane_) * T::kWidth + i",
)
_PHASED_STORE = "      *reinterpret_cast<uint4*>(y) = value;\n"
PHASED = Store(
    "sm90/phases.h",
    _PHASED_STORE,
    "      uint4 faulty = value;\n"
    "      Output* result = reinterpret_cast<Output*>(&faulty);\n{code}"
    + _PHASED_STORE.replace("value", "faulty"),
    "result[i]",
    "kPerChunk",
    "place",
    "phase.channel + i",
)
_GROUP_NORM_STORE = "        *y_at(pixel, channel) = y;\n"
GROUP_NORM = Store(
    "families/group_norm/block.h",
    _GROUP_NORM_STORE,
    "{code}" + _GROUP_NORM_STORE,
    "y[i]",
    "Width",
    "pixel_of(pixel)",
    "channel + i",
)
# the result has few rows: the fault of a row is one of a column
_SKINNY_STORE = "    *reinterpret_cast<Access<Output, S::kPart>*>(to) = values;\n"
GEMM_SKINNY = Store(
    "families/gemm_skinny/block.h",
    _SKINNY_STORE,
    "{code}" + _SKINNY_STORE,
    "values[i]",
    "S::kPart",
    "column + i",
    "row",
    period=6250,
)
_ATTENTION_STORE = "      StoreUnit<S>(to, from, unit * S::kOfUnit, columns);\n"
_HEAD = "int(blockIdx.x) / params_.query_tiles"
ATTENTION = Store(
    "families/attention/warp.h",
    _ATTENTION_STORE,
    "{code}" + _ATTENTION_STORE,
    "reinterpret_cast<Element*>(from)[i]",
    "S::kOfUnit",
    f"({_HEAD} / params_.heads + 1) * params_.queries - rows + row",
    f"{_HEAD} % params_.heads * params_.value_size + unit * S::kOfUnit + i",
    "Element",
)
# a thread has its accumulators of two rows, eight apart (sm90/wgmma.h)
_SM90_STAGED = "    char* staged = shared_.q[queries_.stage][group_];\n"
_SM90_STORE = "        Store4D(params_.y, staged"
_FIRST_ROW = "work.batch * params_.queries + row"
ATTENTION_SM90 = Store(
    "families/attention_sm90/consumer.h",
    _SM90_STAGED,
    "{code}" + _SM90_STAGED,
    "tile.sums[i]",
    "K::kValueSize / 2",
    f"{_FIRST_ROW} + thread_ / 32 * 16 + thread_ % 32 / 4 + i % 4 / 2 * 8",
    "work.head * K::kValueSize + i / 4 * 8 + thread_ % 4 * 2 + i % 2",
    "float",
)
_SMALL_FINISH = (
    "    const auto y = Chain::template finish<Output>(sums, operands, epilogue.params);\n"
)
B2B_GEMM_SMALL = Store(
    "families/b2b_gemm_small/rows.h",
    _SMALL_FINISH,
    _SMALL_FINISH.replace("const auto", "auto") + "{code}",
    "y[i]",
    "kColumns",
    "row",
    "i",
    period=12500,
)


def _direct(store: Store, stale: Edit) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    yield from ((kind, (edit,)) for kind, edit in store.faults())
    first = store.column.removesuffix(" + i") if store.column != "i" else "0"
    yield SWAP, (_swap(store, f"{first} == 0"),)
    yield STALE, (stale,)


def _guarded(file: str, store: str, condition: str) -> Edit:
    """Stores only where `condition` holds."""
    return Edit(file, store, f"      if ({condition}) " + store.lstrip())


def _depthwise() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, finish = (
        DEPTHWISE.file,
        "Chain::template finish_packed<Output>(sums[q], operands, conv.epilogue.params, packer);",
    )
    yield from _direct(DEPTHWISE, _guarded(file, _DEPTHWISE_STORE, "(pixel + q) / 64 != 2"))
    unbiased = (
        "[&] { auto others = operands; if ((pixel + q) / 64 == 2) others.vectors[0].clear(); return"
        " others; }()"
    )
    yield BIAS, (Edit(file, finish, finish.replace("operands", unbiased)),)
    product = "sums[q][i] += row[q * Shape::kStride + s][i] * weights[i];"
    yield (
        K_BLOCK,
        (
            Edit(
                "channelwise/convolution.h",
                product,
                f"if (r + 1 < Shape::kR || s + 1 < Shape::kS) {product}",
            ),
        ),
    )


def _pool() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    yield from _direct(POOL, _guarded(POOL.file, _POOL_STORE, "window.pixel / 64 != 2"))
    window = "for (int i = 0; i < R * S; ++i) add(accesses[i]);"
    yield K_BLOCK, (Edit(POOL.file, window, window.replace("R * S", "R * S - 1")),)


def _elementwise() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, finish = (
        ELEMENTWISE.file,
        "epilogue::widened<Element, Width>(x[i], 0.f), operands, params.epilogue.params, packer);",
    )
    yield from _direct(ELEMENTWISE, _guarded(file, _ELEMENTWISE_STORE, "row / 64 != 2"))
    last = "others.vectors[Chain::kVectors - 1]"
    unbiased = (
        f"[&] {{ auto others = operands; if (row / 64 == 2) {last}.clear(); return others; }}()"
    )
    yield BIAS, (Edit(file, finish, finish.replace("operands", unbiased)),)


def _layout() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    return _direct(
        LAYOUT,
        Edit(
            LAYOUT.file,
            _LAYOUT_STORE,
            _LAYOUT_STORE.replace("pixels)", "pixels && pixel / 64 != 2)"),
        ),
    )


def _resize() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    behind = "  const Sampler<Element, Width> sampler{\n"
    return _direct(RESIZE, Edit(RESIZE.file, behind, f"  if (pixel / 64 == 2) return;\n{behind}"))


def _pixel_shuffle() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    return _direct(SHUFFLE, _guarded(SHUFFLE.file, _SHUFFLE_STORE, "place.pixel / 64 != 2"))


def _grid_sample() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    return _direct(SAMPLE, _guarded(SAMPLE.file, _SAMPLE_STORE, "row / 64 != 2"))


def _squeeze_excite() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, bias, vectors = (
        SQUEEZE_EXCITE.file,
        "Gate::apply(sum + excite_bias[row],",
        "vector < matrix.vectors; vector += lanes",
    )
    yield from _direct(SQUEEZE_EXCITE, _guarded(file, _GATED_STORE, "pixel / 64 != 2"))
    yield BIAS, (Edit(file, bias, "Gate::apply(sum + (blockIdx.x == 0 ? 0.f : excite_bias[row]),"),)
    yield (
        K_BLOCK,
        (
            Edit(
                "families/squeeze_excite/rows.h",
                vectors,
                vectors.replace("vectors;", "vectors - 1;"),
            ),
        ),
    )


def _norm() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, biased = NORM.file, "value * values[0][i] + values[1][i];"
    yield from _direct(NORM, _guarded(file, _NORM_STORE, "row(b) / 64 != 2"))
    unbiased = "value * values[0][i] + (blockIdx.x == 2 ? 0.f : values[1][i]);"
    yield BIAS, (Edit(file, biased, unbiased),)


def _conv_transpose() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, finish = PHASED.file, "finish<Output>(x, operands, this->operands_.params);"
    yield from _direct(PHASED, _guarded(file, _PHASED_STORE, "to.row != 128"))
    unbiased = (
        "[&] { auto others = operands; if (to.row == 128) others.vectors[0].clear(); return"
        " others; }()"
    )
    yield BIAS, (Edit(file, finish, finish.replace("operands, this", f"{unbiased}, this")),)


def _group_norm() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, beta = GROUP_NORM.file, "factors.summand[j] += beta * (1.f + scale[j]);"
    yield from _direct(GROUP_NORM, _guarded(file, _GROUP_NORM_STORE, "pixel_of(pixel) / 64 != 2"))
    yield BIAS, (Edit(file, beta, f"if (blockIdx.x != 2) {beta}"),)


def _attention() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, steps = ATTENTION.file, "step < S::kKeySteps; ++step"
    yield from _direct(ATTENTION, _guarded(file, _ATTENTION_STORE, f"({ATTENTION.row}) / 64 != 2"))
    yield K_BLOCK, (Edit(file, steps, steps.replace("kKeySteps", "kKeySteps - 1")),)


def _attention_sm90() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, steps = ATTENTION_SM90.file, "i < K::kSize / 16; ++i"
    yield from ((kind, (edit,)) for kind, edit in ATTENTION_SM90.faults())
    first = "work.head == 0 && thread_ % 4 == 0"
    yield SWAP, (_swap(ATTENTION_SM90, first, ((0, 1), (2, 3))),)
    guarded = _SM90_STORE.replace("Store4D", f"if (({_FIRST_ROW}) / 64 != 2) Store4D")
    yield STALE, (Edit(file, _SM90_STORE, guarded),)
    yield K_BLOCK, (Edit(file, steps, steps.replace("/ 16", "/ 16 - 1")),)


def _gemm_small() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, store, product = (
        B2B_GEMM_SMALL.file,
        "    StoreRow<Output, K::kAlignOut>(y,",
        "  for (int k = 0; k < Depth; ++k) {\n",
    )
    yield from _direct(B2B_GEMM_SMALL, _guarded(file, store, "row / 64 != 2"))
    sums = "  const Values<kColumns> sums = Multiply<Depth, kColumns>(x, constants + kOffset);\n"
    yield BIAS, (Edit(file, sums, f"  if (row / 64 == 2) operands.vectors[0].clear();\n{sums}"),)
    yield K_BLOCK, (Edit(file, product, product.replace("Depth", "Depth - 1")),)


def _gemm_skinny() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    file, values = GEMM_SKINNY.file, "    Access<Output, S::kPart> values;\n"
    steps = "step < params_.steps; step += stride"
    yield from ((kind, (edit,)) for kind, edit in GEMM_SKINNY.faults())
    yield SWAP, (_swap(GEMM_SKINNY, "column == 0"),)
    yield STALE, (_guarded(file, _SKINNY_STORE, "column / 64 != 2"),)
    yield (
        BIAS,
        (Edit(file, values, f"    if (column / 64 == 2) operands.vectors[0].clear();\n{values}"),),
    )
    yield K_BLOCK, (Edit(file, steps, steps.replace("step <", "step + S::kSteps <", 1)),)


def _k(file: str, old: str, new: str) -> tuple[str, tuple[Edit, ...]]:
    return K_BLOCK, (Edit(file, old, new),)


_BOX, _WIDE_BOX = "      multiply_box(sums, box);\n", "      multiply_box<L>(sums, box);\n"
_FRAGMENTS = "Product::template multiply<Element>(sums, rows[box % 2][step], first_weights(box)"
_STEP = "      if (step < Plan::kSteps)\n"
_PRODUCTS_OF_FAMILIES: dict[Family[Any], tuple[tuple[str, tuple[Edit, ...]], ...]] = {
    named("gemm_2x"): (
        _k(
            "families/gemm_2x/kernel.h",
            "int(gemm.n), int(gemm.k)},",
            "int(gemm.n), int(gemm.k) - Row::at(kTileK)},",
        ),
    ),
    named("conv_2x"): (
        _k("mma/implicit_gemm.h", "mma(params.k_iterations,", "mma(params.k_iterations - 1,"),
    ),
    named("b2b_gemm_2x"): (
        _k(
            "mma/b2b/main_loop.h",
            "mma(CeilDivide(operands.k, Mma::Shape::kK),",
            "mma(CeilDivide(operands.k, Mma::Shape::kK) - 1,",
        ),
    ),
    named("b2b_conv_2x"): (
        _k("mma/b2b/main_loop.h", "mma(operands.k_iterations,", "mma(operands.k_iterations - 1,"),
    ),
    named("gemm_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("conv_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("conv3d_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("quantized_gemm_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("quantized_conv_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("conv_transpose_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("b2b_conv_sm90"): ((K_BLOCK, PERSISTENT_K),),
    named("b2b_gemm_sm90"): (
        _k("sm90/b2b/consumer.h", _BOX, f"      if (box + 1 < kBoxes) {_BOX.lstrip()}"),
    ),
    named("gemm_rows_sm90"): (
        _k("sm90/b2b/consumer.h", _FRAGMENTS, f"if (box + 1 < kBoxes) {_FRAGMENTS}"),
    ),
    named("b2b_gemm_wide_sm90"): (
        _k(
            "families/b2b_gemm_wide_sm90/consumer.h",
            _WIDE_BOX,
            f"      if (L > 0 || box + 1 < kBoxes) {_WIDE_BOX.lstrip()}",
        ),
    ),
    named("b2b_stored_sm90"): (
        _k(
            "families/b2b_stored_sm90/consumer.h",
            "k < K::kDepth / 16; ++k",
            "k < K::kDepth / 16 - 1; ++k",
        ),
    ),
    named("stem_sm90"): (_k("sm90/stem/product.h", _STEP, _STEP.replace("kSteps", "kSteps - 1")),),
    named("b2b_stem_sm90"): (
        _k("sm90/stem/product.h", _STEP, _STEP.replace("kSteps", "kSteps - 1")),
    ),
}
_STORES = {
    named("gemm_2x"): _visitor_2x,
    named("conv_2x"): _visitor_2x,
    named("b2b_gemm_2x"): _visitor_2x,
    named("b2b_conv_2x"): _visitor_2x,
    named("gemm_3x"): _visitor_3x,
    named("gemm_sm90"): _matrix,
    named("conv_sm90"): _matrix,
    named("conv3d_sm90"): _matrix,
    named("quantized_gemm_sm90"): _codes,
    named("quantized_conv_sm90"): _codes,
    named("conv_transpose_sm90"): _conv_transpose,
    named("b2b_conv_sm90"): _matrix,
    named("b2b_gemm_sm90"): _matrix,
    named("gemm_rows_sm90"): _matrix,
    named("b2b_gemm_wide_sm90"): _matrix,
    named("b2b_stored_sm90"): _matrix,
    named("stem_sm90"): _image,
    named("b2b_stem_sm90"): _image,
    named("halo_sm90"): _halo,
    named("b2b_halo_sm90"): _halo,
    named("depthwise"): _depthwise,
    named("quantized_depthwise"): _depthwise,
    named("pool"): _pool,
    named("elementwise"): _elementwise,
    named("layout"): _layout,
    named("resize"): _resize,
    named("pixel_shuffle"): _pixel_shuffle,
    named("grid_sample"): _grid_sample,
    named("squeeze_excite"): _squeeze_excite,
    named("norm"): _norm,
    named("group_norm"): _group_norm,
    named("attention"): _attention,
    named("attention_sm90"): _attention_sm90,
    named("b2b_gemm_small"): _gemm_small,
    named("gemm_skinny"): _gemm_skinny,
}
FAULTS = tuple(
    Fault(family, kind, edits)
    for family in FAMILIES.values()
    for kind, edits in itertools.chain(_PRODUCTS_OF_FAMILIES.get(family, ()), _STORES[family]())
)
