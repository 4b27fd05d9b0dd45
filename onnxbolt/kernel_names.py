"""The names of a library's kernels as Nsight Compute prints them, so that a line of its output can
be found in a report.

The library registers each kernel with CUDA by its mangled name, which is a string in its read-only
data. C++'s runtime library takes it apart. Nsight Compute writes constants with their types, and
leaves out the spaces between closing brackets; parameters are left out here, since they repeat the
template's arguments.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator

from onnxbolt.codegen.render import Instance, template_arguments
from onnxbolt.library_file import section

_MANGLED = re.compile(rb"(?<=\0)_ZN8onnxbolt[\w$.]+(?=\0)", re.ASCII)
# constants as C++'s runtime library writes them, and as Nsight Compute does
_LONG = re.compile(r"(?<![\w.])(-?\d+)l\b")
_BOOL = re.compile(r"(?<=[<,] )(true|false)(?=[,>])|(?<=<)(true|false)(?=[,>])")
_INT = re.compile(r"((?<=, )|(?<=<))(-?\d+)(?=[,>])")


def kernel_names(library: bytes, instances: Iterable[Instance]) -> dict[Instance, str]:
    """The name of each kernel in the bytes of a library. A kernel whose name does not tell it from
    others is left out, and all are where C++'s runtime library is missing. Raises ValueError for
    bytes of no library."""
    demangled = list(_demangled(section(library, b".rodata")))
    found = {}
    for instance in instances:
        row, types = template_arguments(instance)
        numbers = f"Config<{', '.join(f'{number}l' for number in row)}>"
        candidates = [name for name in demangled if numbers in name]
        exact = [name for name in candidates if f"{numbers}, {types}" in _compact(name)]
        chosen = exact or candidates
        if len(chosen) == 1:
            found[instance] = as_printed(chosen[0])
    return found


def as_printed(demangled: str) -> str:
    """A name of C++'s runtime library as Nsight Compute prints it, without parameters.

    void f<Config<90l, 1l>, 64, false>(Params)   void f<Config<(long)90, (long)1>, (int)64, (bool)0>
    """
    name = _compact(demangled[: _parameters(demangled)])
    name = _LONG.sub(r"(long)\1", _INT.sub(r"(int)\2", name))
    return _BOOL.sub(lambda found: f"(bool){int(found[0] == 'true')}", name)


def _compact(name: str) -> str:
    while "> >" in name:
        name = name.replace("> >", ">>")
    return name


def _parameters(name: str) -> int:
    """The place of the bracket that begins a function's parameters."""
    depth = 0
    for place, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and not depth:
            return place
    return len(name)


def _demangled(strings: bytes) -> Iterator[str]:
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return
    runtime.__cxa_demangle.restype = ctypes.c_void_p
    runtime.free.argtypes = [ctypes.c_void_p]
    for mangled in sorted(set(_MANGLED.findall(strings))):
        status = ctypes.c_int()
        text = runtime.__cxa_demangle(mangled, None, None, ctypes.byref(status))
        if text:
            yield ctypes.string_at(text).decode(errors="replace")
            runtime.free(text)
