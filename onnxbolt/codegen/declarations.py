"""What Python and C++ both know, rendered from Python's declarations into one C++ header.

    python -m onnxbolt.codegen.declarations     # renews custom_ops/runtime/declarations.h

The header is committed, and tests/codegen/test_declarations.py compares it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnxbolt import domains, names
from onnxbolt.archs import ARCHS
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_LAYERS, MAX_PARAMS, MAX_TENSORS, MAX_VECTORS
from onnxbolt.kernels import resize
from onnxbolt.kernels.config import (
    ROW_WIDTH,
    SWIZZLED_AT_LAUNCH,
    TILED_AT_LAUNCH,
    Family,
    Iterator,
    KernelConfig,
    Schedule,
)

_TILE = {"threadblock": "tile"}  # fields whose columns have another name in C++
_AXES = "MNK"  # of a field with several numbers


def path() -> Path:
    """Where the header lies."""
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
        " (onnxbolt/epilogues.py).\n"
        f"constexpr int kMaxVectors = {MAX_VECTORS}, kMaxTensors = {MAX_TENSORS},"
        f" kMaxParams = {MAX_PARAMS}, kMaxLayers = {MAX_LAYERS};\n"
    )


def _configuration() -> Iterable[str]:
    """The row of a configuration, and the meanings of its numbers."""
    yield (
        "// Columns of a configuration row, in the order of KernelConfig's fields\n"
        "// (onnxbolt/kernels/config.py).\n"
        f"constexpr int kConfigWidth = {ROW_WIDTH};\n" + _enumeration("enum Column", columns())
    )
    yield "// Kernel families.\n" + _enumeration("enum class Family : int64_t", _members(Family))
    yield (
        "// Families whose swizzle, or whose warp columns, are read at launch: rows of one kernel\n"
        "// differ in them.\n"
        + _list("Family", "kSwizzledAtLaunch", SWIZZLED_AT_LAUNCH)
        + _list("Family", "kTiledAtLaunch", TILED_AT_LAUNCH)
    )
    yield _enumeration("enum Schedule", _members(Schedule, none="kNoSchedule"))
    yield _enumeration("enum Iterator", _members(Iterator, none="kNoIterator"))


def columns() -> list[str]:
    """C++ names of a row's columns."""
    example = KernelConfig(80, 0, 1, Family.POOL, (1, 1, 1))
    found: list[str] = []
    for field in dataclasses.fields(KernelConfig):
        name = _constant(_TILE.get(field.name, field.name))
        value = getattr(example, field.name)
        axes = _AXES[: len(value)] if isinstance(value, tuple) else [""]
        found += [f"{name}{axis}" for axis in axes]
    return found


def _resizing() -> Iterable[str]:
    yield "// How a resizing samples, by the numbers that a node carries (ONNX, Resize).\n" + (
        _words("ResizeMode", resize.MODES)
        + _words("Coordinates", resize.COORDINATES)
        + _words("Rounding", [word.removeprefix("round_") for word in resize.ROUNDINGS])
    )


def _elements() -> Iterable[str]:
    """The element types of kernels."""
    rows = [f'{{{_type(dtype)}, "{dtype.value}", {dtype.bytes}}}' for dtype in DType]
    constants = ", ".join(f"{_type(dtype)} = {dtype.onnx}" for dtype in DType)
    yield (
        "// Element types by their number in ONNX (TensorProto.DataType).\n"
        f"constexpr int {constants};\n"
        "struct ElementFacts {\n  int type;\n  const char* name;\n  int bytes;\n};\n"
        "constexpr ElementFacts kElements[] = " + _rows(rows)
    )


def _architectures() -> Iterable[str]:
    rows = [
        f'{{{arch.number}, "{arch.name}", {_boolean(not arch.nvcc.isdigit())}}}'
        for arch in ARCHS.values()
    ]
    yield (
        "// Architectures: their number in configurations, their name, and whether their code\n"
        "// runs on no other GPU.\n"
        "struct ArchFacts {\n  int number;\n  const char* name;\n  bool alone;\n};\n"
        "constexpr ArchFacts kKnownArchs[] = " + _rows(rows)
    )


def _type(dtype: DType) -> str:
    return f"kType{dtype.value.upper()}"


def _words(name: str, words: Sequence[str]) -> str:
    members = [f"{_constant(word)} = {number}" for number, word in enumerate(words)]
    return _enumeration(f"enum class {name} : int", members)


def _members(kind: type[enum.IntEnum], none: str = "") -> list[str]:
    return [
        f"{none if none and member == 0 else _constant(member.name)} = {member.value}"
        for member in kind
    ]


def _list(kind: str, name: str, members: Iterable[enum.IntEnum]) -> str:
    values = ", ".join(f"{kind}::{_constant(member.name)}" for member in members)
    return f"constexpr {kind} {name}[] = {{{values}}};\n"


def _rows(rows: Iterable[str]) -> str:
    lines = "".join(f"    {row},\n" for row in rows)
    return f"{{\n{lines}}};\n"


def _enumeration(head: str, members: Iterable[str]) -> str:
    lines = "".join(f"  {member},\n" for member in members)
    return f"{head} {{\n{lines}}};\n"


def _constant(name: str) -> str:
    """half_pixel -> kHalfPixel."""
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


if __name__ == "__main__":
    path().write_text(declarations())
