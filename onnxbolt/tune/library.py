"""Builds shared libraries of candidates, which the profiler loads, on all cores while earlier ones
are measured.

A library holds a few kernels, so that one that does not load affects few others. A unit that does
not compile is split to find the instance that fails. The result of each instance is remembered in
the cache directory, whatever others it was compiled with. The reference and the clock are a library
of their own (`profiler_library`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onnxbolt.codegen import cache
from onnxbolt.codegen.artifacts import (
    Progress,
    Unit,
    compile_each,
    compile_units,
    link,
    object_path,
    text_digest,
    unit_key,
)
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain
from onnxbolt.codegen.render import (
    Instance,
    include_dirs_of,
    instance_name,
    reference_steps,
    render_unit,
)
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.errors import BuildError
from onnxbolt.families import Family

# the most kernels of a unit: CUTLASS's headers take as long as two kernels, but at the end a long
# unit keeps one core busy alone
_UNIT_SIZE = 8
# cores whose units one thread can link: a few tenths of a second each, against seconds to compile
_CORES_PER_LINKER = 16
# ptxas's messages about spilled registers, and about serialized wgmma instructions (C7510 to C7518,
# by cause)
SLOW_CODE = re.compile(r"spilled to local memory|wgmma\S* instructions are serialized|C7510|C7511")
# a mangled name, with a page of template arguments
_FUNCTION = re.compile(r" in (the )?function '[^']*'")


@dataclass(frozen=True)
class Uncompiled:
    """An instance that is not measured: the compiler refused it or warned that its code is slow."""

    detail: str


@dataclass(frozen=True)
class Object:
    """A compiled unit of candidates, in the cache of objects, and the names of its kernels."""

    path: Path
    names: tuple[str, ...]


Result = tuple[Instance, Path | Uncompiled]
# the object of a unit, and the results of its instances; None for those to be compiled alone
_Built = tuple[Object | None, Mapping[Instance, Path | Uncompiled | None]]


class Compiler(Protocol):
    """`compile_each`, or what takes its place."""

    def __call__(
        self,
        units: Sequence[Unit],
        toolchain: Toolchain,
        progress: Progress | None = None,
        *,
        stop: threading.Event | None = None,
    ) -> Iterator[tuple[Unit, Path | BuildError]]: ...


def profiling_toolchain() -> Toolchain:
    """The product's compiler, for libraries that the profiler loads. Raises ToolchainError."""
    return dataclasses.replace(find_toolchain(), exports="profiler/exports.map")


def profiler_library(arch: int, progress: Progress | None = None) -> Path:
    """The library with the clock and the reference (custom_ops/profiler/*.cu), for GPUs of `arch`.
    Raises BuildError, ToolchainError."""
    toolchain = profiling_toolchain()
    sources = sorted((resource_dir("custom_ops") / "profiler").glob("*.cu"))
    steps, include_dirs = reference_steps()
    units = [
        Unit(path.name, steps + path.read_text(encoding="utf-8"), arch, include_dirs)
        for path in sources
    ]
    return link_library(compile_units(units, toolchain, progress), toolchain)


def build(
    instances: Iterable[Instance],
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    compiler: Compiler = compile_each,
) -> Iterator[Result]:
    """Each instance with the library that holds it, or with the reason why there is none, as soon
    as it is known.

    Remembered ones come first; the others are compiled in the order given. Once `stop` is set,
    instances that are not built yet never come. Raises ToolchainError, and BuildError for a failure
    that says nothing about the instances (a full disk).
    """
    memory = _Memory(profiling_toolchain())
    missing = []
    for instance in dict.fromkeys(instances):
        if known := memory.recall(instance):
            yield instance, known
        else:
            missing.append(instance)
    share = math.fsum(instance.config.family.compile_seconds for instance in missing) / len(
        os.sched_getaffinity(0)
    )
    # so short that no core works alone for long at the end
    for seconds in (share, 0.0):
        parts, missing = list(_parts(missing, seconds)), []
        for part, unit, verdicts in _build_parts(parts, memory.toolchain, progress, stop, compiler):
            for instance in part:
                result = verdicts[instance]
                if result is None:
                    missing.append(instance)
                    continue
                memory.remember(instance, result, unit)
                yield instance, result
        if stop and stop.is_set():
            return


def compiled(instances: Iterable[Instance]) -> dict[Instance, Path]:
    """Cached objects with those of `instances` that were compiled as candidates, for linking them
    into a library.

    An object holds all kernels of its unit; no kernel is in two of the returned objects, so that
    they can be linked together.
    """
    memory, found, holders = (
        _Memory(profiling_toolchain()),
        dict[Instance, Path](),
        dict[str, Path](),
    )
    for instance in instances:
        name, known = instance_name(instance), memory.object_of(instance)
        if name not in holders and known is not None and holders.keys().isdisjoint(known.names):
            holders.update(dict.fromkeys(known.names, known.path))
        if name in holders:
            found[instance] = holders[name]
    return found


def link_library(objects: Sequence[Path], toolchain: Toolchain) -> Path:
    """The shared library of `objects` of the cache, from the cache or linked now. Raises
    BuildError."""
    exports = (resource_dir("custom_ops") / toolchain.exports).read_text(encoding="utf-8")
    name = text_digest([("exports", exports), *((path.parent.name, "") for path in objects)])
    library = _directory() / f"{name}.so"
    if not library.exists():
        link(objects, library, toolchain)
    return cache.used(library)


def cutlass_version(toolchain: Toolchain) -> str:
    """The version in CUTLASS's header, e.g. "4.2.0"."""
    text = (toolchain.cutlass / "include" / "cutlass" / "version.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)", text))
    return ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))


def host_units() -> list[Unit]:
    """The units of a library of candidates besides its kernels: the table that finds them."""
    root = resource_dir("custom_ops")
    return [
        Unit(path.name, path.read_text(encoding="utf-8"))
        for path in (root / "runtime" / "kernel_table.cc", root / "profiler" / "kernels.cc")
    ]


def _directory() -> Path:
    directory = cache.candidates()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


class _Memory:
    """The results of instances: one small file each, named by the digest of all that decides the
    result."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.toolchain = toolchain
        self._host = [("host", unit_key(unit, toolchain)) for unit in host_units()]

    def recall(self, instance: Instance) -> Path | Uncompiled | None:
        """The result of an instance; None if it is unknown or its library is gone."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(cache.used(self._file(instance)).read_text(encoding="utf-8"))
            if "detail" in record:
                return Uncompiled(record["detail"])
            library = _directory() / record["library"]
            return cache.used(library) if library.exists() else None
        return None

    def object_of(self, instance: Instance) -> Object | None:
        """The object of an instance; None if it was not compiled or is no longer in the cache."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(self._file(instance).read_text(encoding="utf-8"))
            path = object_path(record["object"])
            cache.used(path.parent)
            return Object(path, tuple(record["kernels"])) if path.exists() else None
        return None

    def remember(self, instance: Instance, result: Path | Uncompiled, unit: Object | None) -> None:
        record: dict[str, object] = (
            {"detail": result.detail}
            if isinstance(result, Uncompiled)
            else {"library": result.name}
        )
        if unit is not None and not isinstance(result, Uncompiled):
            record |= {"object": unit.path.parent.name, "kernels": unit.names}
        file = self._file(instance)
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(record), encoding="utf-8")
        os.replace(scratch, file)

    def _file(self, instance: Instance) -> Path:
        key = unit_key(_unit([instance]), self.toolchain)
        return _directory() / f"{text_digest([('kernel', key), *self._host])}.json"


def _unit(part: Sequence[Instance]) -> Unit:
    config = part[0].config
    name = f"{config.family.name}_sm{config.arch}.cu"
    return Unit(name, render_unit(part), config.arch, include_dirs_of(part))


def _parts(instances: Sequence[Instance], seconds: float) -> Iterator[list[Instance]]:
    """Groups of nearly equal length, each of one family and architecture, that compile within
    `seconds` or hold a single kernel; the slowest to compile come first."""
    groups: dict[tuple[Family[Any], int], list[Instance]] = {}
    for instance in instances:
        groups.setdefault((instance.config.family, instance.config.arch), []).append(instance)
    for family, arch in sorted(groups, key=lambda key: -key[0].compile_seconds):
        group = groups[family, arch]
        size = min(_UNIT_SIZE, max(1, int(seconds / family.compile_seconds)))
        length = math.ceil(len(group) / math.ceil(len(group) / size))
        for i in range(0, len(group), length):
            yield group[i : i + length]


def _build_parts(
    parts: Sequence[list[Instance]],
    toolchain: Toolchain,
    progress: Progress | None,
    stop: threading.Event | None,
    compiler: Compiler,
) -> Iterator[tuple[list[Instance], Object | None, Mapping[Instance, Path | Uncompiled | None]]]:
    """Compile and link parts; yields each with its object and the results of its instances. A
    result is None if the instance has to be compiled alone to be known."""
    if not parts:
        return
    host = compile_units(host_units(), toolchain)
    units = {_numbered(_unit(part), i): part for i, part in enumerate(parts)}
    linkers = len(os.sched_getaffinity(0)) // _CORES_PER_LINKER
    linking: deque[tuple[list[Instance], Future[_Built]]] = deque()

    def built(part: Sequence[Instance], compiled: Path) -> _Built:
        verdicts = _slow_code(part, compiled.with_name("unit.log"))
        needed = len(verdicts) < len(part)
        library = link_library([compiled, *host], toolchain) if needed else None
        made = Object(compiled, tuple(instance_name(instance) for instance in part))
        return made, {instance: verdicts.get(instance, library) for instance in part}

    with ThreadPoolExecutor(max(linkers, 1)) as pool:
        for unit, outcome in compiler(list(units), toolchain, progress, stop=stop):
            part = units[unit]
            if isinstance(outcome, BuildError):
                alone = Uncompiled(str(outcome)) if len(part) == 1 else None
                yield part, None, dict.fromkeys(part, alone)
            elif linkers == 0:
                yield part, *built(part, outcome)
            else:
                linking.append((part, pool.submit(built, part, outcome)))
            while linking and linking[0][1].done():
                yield linking[0][0], *linking.popleft()[1].result()
        for part, linked in linking:
            yield part, *linked.result()


def _numbered(unit: Unit, i: int) -> Unit:
    return dataclasses.replace(unit, name=unit.name.replace(".cu", f"_{i}.cu"))


def _slow_code(part: Sequence[Instance], log: Path) -> dict[Instance, Uncompiled | None]:
    """Instances that the compiler warned about; None if its log does not tell which of several it
    means."""
    found: dict[Instance, Uncompiled | None] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if not SLOW_CODE.search(line):
            continue
        accused = (
            [instance for instance in part if _mangled_row(instance) in line]
            if len(part) > 1
            else part
        )
        for instance in accused or part:
            found[instance] = (
                Uncompiled(_FUNCTION.sub("", line).strip()) if len(accused) == 1 else None
            )
    return found


def _mangled_row(instance: Instance) -> str:
    """The configuration as it stands in the mangled name of the kernel's function: Config<90, 0,
    ..> is ConfigIJLl90ELl0E.."""
    return "".join(f"Ll{number}E" for number in instance.config.row())
