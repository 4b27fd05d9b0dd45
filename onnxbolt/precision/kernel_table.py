"""The operators that ONNX Runtime's CUDA provider implements in each floating-point type, release
by release.

`cuda_kernels.csv` is read out of the releases' own registries (`python -m tests.ort_kernels
WHEEL..`). A row: an operator of ai.onnx, the opset versions that a kernel is registered for, a
type, and the first and the last release that have this kernel.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path

import onnx

from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.precision import ops
from onnxbolt.spelling import option

PATH = Path(__file__).with_name("cuda_kernels.csv")
TYPES = {DType.BF16: "tensor(bfloat16)", DType.F16: "tensor(float16)", DType.F32: "tensor(float)"}
PACKAGES = ("onnxruntime-gpu", "onnxruntime")
OPEN = 2**31 - 1  # the last version of a kernel that is not limited
_COLUMNS = ("op", "since", "until", "type", "first", "last")


@dataclass(frozen=True, order=True)
class Kernel:
    """A registration: `since` is the first opset version that the kernel is for, and `until` the
    last one, OPEN if the registration names none."""

    op: str
    since: int
    until: int
    dtype: str  # a value of DType

    def serves(self, version: int) -> bool:
        """True if ONNX Runtime takes the kernel for an operator of opset version `version`.

        A kernel without a last version is for exactly the version that it names, since nobody knew
        later ones when it was written.
        """
        return version == self.since or (self.since < version <= self.until != OPEN)


@dataclass(frozen=True)
class Kernels:
    """The CUDA kernels of one release of ONNX Runtime, such as "1.31"."""

    release: str
    kernels: frozenset[Kernel]

    def has(self, op: str, opset: int, dtype: DType) -> bool:
        """True if there is a kernel for `op` of ai.onnx at `opset` in `dtype`.

        Where the release has no kernel in any type for the operator's version, those for its other
        versions decide: the node runs on the CPU until ONNX Runtime registers the version, and its
        type is not the reason.
        """
        if ops.is_composed(op):
            return True
        version = onnx.defs.get_schema(op, opset, "").since_version
        named = self._by_op.get(op, [])
        matching = [kernel for kernel in named if kernel.serves(version)] or named
        return any(kernel.dtype == dtype.value for kernel in matching)

    @cached_property
    def _by_op(self) -> dict[str, list[Kernel]]:
        found: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            found.setdefault(kernel.op, []).append(kernel)
        return found


def kernels_of(version: str = "") -> Kernels:
    """The kernels of a version of ONNX Runtime ("1.31" or "1.31.1"); by default of the installed
    one, and without one of the newest release that the table covers.

    A version later than all known ones counts as the newest known. Raises InputError for an earlier
    one and for what is no version.
    """
    first, *_, last = releases()
    chosen = version or installed() or last
    found = min(release(chosen), last, key=_number)
    if _number(found) < _number(first):
        raise InputError(
            f"{option('ort_version', chosen)}: onnxbolt knows the kernels of ONNX Runtime"
            f" {first} to {last}; give a release from {first} on"
        )
    return _kernels_of(found)


def release(version: str) -> str:
    """The release of a version, like "1.31" of "1.31.1". Raises InputError for other text."""
    match = re.match(r"(\d{1,3}\.\d{1,3})(\.|$)", version)
    if match is None:
        raise InputError(
            f"{option('ort_version', version)}: give a release of ONNX Runtime such as"
            f" {releases()[-1]}"
        )
    return match[1]


def installed() -> str:
    """The version of the installed ONNX Runtime; empty if there is none."""
    for package in PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def releases() -> tuple[str, ...]:
    """The releases that the table covers, in order."""
    return tuple(sorted({row[end] for row in _rows() for end in ("first", "last")}, key=_number))


@lru_cache(maxsize=4)
def _kernels_of(wanted: str) -> Kernels:
    rows = [
        row for row in _rows() if _number(row["first"]) <= _number(wanted) <= _number(row["last"])
    ]
    return Kernels(
        wanted,
        frozenset(
            Kernel(row["op"], int(row["since"]), int(row["until"] or OPEN), row["type"])
            for row in rows
        ),
    )


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader(io.StringIO(PATH.read_text(encoding="utf-8"))))


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


# --- writing the table, for tests/ort_kernels.py --------------------------------------------------


def deciding_parameter(op: str, version: int) -> str:
    """The type parameter of an operator's data, such as "T": that of the first input, else output,
    that may be fp32 and is not a count."""
    schema = onnx.defs.get_schema(op, version, "")
    floats = {
        c.type_param_str for c in schema.type_constraints if TYPES[DType.F32] in c.allowed_type_strs
    }
    data = [
        formal for i, formal in enumerate(schema.inputs) if i not in ops.FP32_INPUTS.get(op, ())
    ]
    return next(
        (str(formal.type_str) for formal in (*data, *schema.outputs) if formal.type_str in floats),
        "",
    )


def text(found: Mapping[str, Iterable[Kernel]]) -> str:
    """The table as CSV, from the kernels of consecutive releases."""
    names = sorted(found, key=_number)
    spans: dict[Kernel, list[list[str]]] = {}
    for index, name in enumerate(names):
        for kernel in found[name]:
            of_kernel = spans.setdefault(kernel, [])
            if of_kernel and of_kernel[-1][1] == names[index - 1]:
                of_kernel[-1][1] = name
            else:
                of_kernel.append([name, name])
    rows = [
        (k.op, k.since, "" if k.until == OPEN else k.until, k.dtype, *span)
        for k in sorted(spans)
        for span in spans[k]
    ]
    return "\n".join(",".join(map(str, row)) for row in (_COLUMNS, *rows)) + "\n"
