"""Names and numbers that Python and C++ share, rendered from Python's declarations into a C++
header.

    python -m onnxbolt.codegen.declarations     # renews custom_ops/runtime/declarations.h

The header is committed, and tests/codegen/test_declarations.py compares it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnx import TensorProto

from onnxbolt import archs, domains, names, sampling
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType, IndexType
from onnxbolt.epilogues import MAX_LAYERS, MAX_PARAMS, MAX_TENSORS, MAX_VECTORS
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.codes import Offsets
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.row import SLOTS, WIDTH
from onnxbolt.problems import MAX_TABLES


def path() -> Path:
    """The path of the header."""
    return resource_dir("custom_ops") / "runtime" / "declarations.h"


def declarations() -> str:
    """The header's text."""
    parts = [
        "// Generated from Python's declarations by: python -m onnxbolt.codegen.declarations\n"
        "// clang-format off\n"
        "#pragma once\n#include <cstdint>\n\nnamespace onnxbolt {\n",
        *_names(),
        *_limits(),
        *_configuration(),
        *_resizing(),
        *_elements(),
        *_architectures(),
        "}  // namespace onnxbolt\n",
    ]
    return "\n".join(parts)


def _names() -> Iterable[str]:
    yield (
        "// Names and numbers that models and sessions hold\n"
        "// (onnxbolt/domains.py, onnxbolt/names.py).\n"
        f'constexpr char kDomain[] = "{domains.FUSED}";\n'
        f"constexpr int64_t kNodeFormat = {names.NODE_FORMAT};\n"
        "// session configuration entries\n"
        f'constexpr char kEnableEntry[] = "{names.ENABLE}", kDeviceEntry[] = "{names.DEVICE}";\n'
    )


def _limits() -> Iterable[str]:
    yield (
        "// Room for an epilogue's operands, and for products in one kernel"
        " (onnxbolt/epilogues/).\n"
        f"constexpr int kMaxVectors = {MAX_VECTORS}, kMaxTensors = {MAX_TENSORS},"
        f" kMaxParams = {MAX_PARAMS}, kMaxLayers = {MAX_LAYERS};\n"
        "// Embeddings that one kernel adds up (onnxbolt/problems/norm.py).\n"
        f"constexpr int kMaxTables = {MAX_TABLES};\n"
    )


def _configuration() -> Iterable[str]:
    """The columns of a configuration's row, and the meanings of its numbers."""
    yield (
        "// Columns of a configuration row (onnxbolt/families/row.py).\n"
        f"constexpr int kConfigWidth = {WIDTH};\n" + _enumeration("enum Column", columns())
    )
    yield _enumeration("enum Schedule", _members(Schedule, none="kNoSchedule"))
    yield _enumeration("enum Iterator", _members(Walk, none="kNoIterator"))
    yield _enumeration("enum Offsets", _members(Offsets, none="kNoOffsets"))


def columns() -> list[str]:
    """C++ names of a row's columns."""
    return [constant(slot) for slot in SLOTS]


def _resizing() -> Iterable[str]:
    yield "// How a resizing samples, by the numbers that a node carries (ONNX, Resize).\n" + (
        _words("ResizeMode", sampling.MODES)
        + _words("Coordinates", sampling.COORDINATES)
        + _words("Rounding", [word.removeprefix("round_") for word in sampling.ROUNDINGS])
    )
    yield "// How a grid samples, by the numbers that a node carries (ONNX, GridSample).\n" + (
        _words("SampleMode", sampling.SAMPLE_MODES) + _words("Outside", sampling.OUTSIDE)
    )


def _elements() -> Iterable[str]:
    """The element types of kernels."""
    rows = [
        f'{{{_type(dtype)}, "{dtype.value}", {dtype.bytes}, {_type(dtype.weight)}}}'
        for dtype in DType
    ]
    constants = ", ".join(f"{_type(dtype)} = {dtype.onnx}" for dtype in DType)
    indices = ", ".join(f"kType{index.value.upper()} = {index.onnx}" for index in IndexType)
    yield (
        "// Element types by their number in ONNX (TensorProto.DataType).\n"
        f"constexpr int {constants};\n"
        f"constexpr int kTypeBool = {TensorProto.BOOL};  // masks have it\n"
        f"constexpr int {indices};  // indices have them\n"
        "struct ElementFacts {\n  int type;\n  const char* name;\n  int bytes;\n"
        "  int weight;  // the type of the weights by which it is multiplied\n};\n"
        "constexpr ElementFacts kElements[] = " + _rows(rows)
    )


def _architectures() -> Iterable[str]:
    """The package's own architectures. A library holds the facts of those that it has kernels
    for."""
    rows = [f'{{{arch.number}, "{arch.name}"}}' for arch in archs.OWN]
    yield (
        "// Names of architectures by their number in configurations, for messages.\n"
        "struct KnownArch {\n  int number;\n  const char* name;\n};\n"
        "constexpr KnownArch kKnownArchs[] = " + _rows(rows)
    )


def _type(dtype: DType) -> str:
    return f"kType{dtype.value.upper()}"


def _words(name: str, words: Sequence[str]) -> str:
    members = [f"{constant(word)} = {number}" for number, word in enumerate(words)]
    return _enumeration(f"enum class {name} : int", members)


def _members(kind: type[enum.IntEnum], none: str = "") -> list[str]:
    return [
        f"{none if none and member == 0 else constant(member.name)} = {member.value}"
        for member in kind
    ]


def _rows(rows: Iterable[str]) -> str:
    lines = "".join(f"    {row},\n" for row in rows)
    return f"{{\n{lines}}};\n"


def _enumeration(head: str, members: Iterable[str]) -> str:
    lines = "".join(f"  {member},\n" for member in members)
    return f"{head} {{\n{lines}}};\n"


def constant(name: str) -> str:
    """half_pixel -> kHalfPixel."""
    return "k" + "".join(word.capitalize() for word in name.split("_"))


if __name__ == "__main__":
    path().write_text(declarations(), encoding="utf-8")
