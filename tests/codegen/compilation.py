"""Compiling instances for tests, and reading in the compiler's log whether the machine code is
slow."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxbolt.archs import ARCHS, get
from onnxbolt.codegen.artifacts import Progress, Unit, compile_units
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain
from onnxbolt.codegen.render import Instance, arch_source, render_unit
from onnxbolt.families import Family
from onnxbolt.tune.library import SLOW_CODE


class WatchfulToolchain(Toolchain):
    """The product's compiler, told to say where it spills."""

    def compile_command(self, source: str, output: str, arch: int = 0) -> list[str]:
        watch = ["-Xptxas=-warn-spills"] if arch else []
        return [*super().compile_command(source, output, arch), *watch]


class DeviceToolchain(WatchfulToolchain):
    """Compiles the device's side of a unit alone, which takes half the time."""

    def compile_command(self, source: str, output: str, arch: int = 0) -> list[str]:
        return [
            "-cubin" if part == "-c" else part
            for part in super().compile_command(source, output, arch)
        ]


def watchful(kind: type[WatchfulToolchain] = WatchfulToolchain) -> WatchfulToolchain:
    """Raises ToolchainError where no compiler is found."""
    found = find_toolchain()
    return kind(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


def units(instances: Sequence[Instance], size: int) -> list[Unit]:
    """Translation units of at most `size` kernels, each of one family and architecture, in the
    order given."""
    groups: dict[tuple[Family[Any], int], list[Instance]] = {}
    for instance in instances:
        groups.setdefault((instance.config.family, instance.config.arch), []).append(instance)
    return [
        Unit(
            f"{members[0].config.family.name.lower()}_sm{arch}_{start // size}.cu",
            render_unit(members[start : start + size]),
            arch,
        )
        for (_, arch), members in groups.items()
        for start in range(0, len(members), size)
    ]


def joined(instances: Sequence[Instance]) -> Unit:
    """One unit of kernels of several families, all for one architecture: the compiler reads what
    their headers include once, which takes half the time. Only in the first one's headers would it
    miss an include."""
    (arch,) = {instance.config.arch for instance in instances}
    return joined_texts([unit.text for unit in units(instances, 1)], arch)


def joined_texts(texts: Sequence[str], arch: int) -> Unit:
    """One unit of the texts of several for one architecture, whose facts it declares once."""
    facts = arch_source(get(arch)).strip()
    first, *others = texts
    text = "".join((first, *(other.replace(facts, "") for other in others)))
    return Unit(f"families_sm{arch}.cu", text, arch)


def compile_all(
    sources: Sequence[Unit], toolchain: Toolchain, progress: Progress | None = None
) -> tuple[list[Path], list[str]]:
    """The objects, and the complaints about slow code. Raises BuildError where one does not
    compile."""
    objects = compile_units(sources, toolchain, progress)
    return objects, [
        f"{unit.name}: {line}"
        for unit, path in zip(sources, objects, strict=True)
        for line in slow_code(path)
    ]


def slow_code(compiled: Path) -> list[str]:
    """Lines of the log beside an object that tell of slow code."""
    log = compiled.with_name("unit.log")
    return (
        [line.strip() for line in log.read_text().splitlines() if SLOW_CODE.search(line)]
        if log.exists()
        else []
    )


def compile_program(source: Path, text: str, include_dirs: tuple[Path, ...] = ()) -> Path:
    """A program for the host from CUDA source for sm_90, which may name what the kernels'
    headers have; `source` is written beside it. A line ARCHS becomes what generated units say of
    their architectures."""
    facts = "".join(map(arch_source, ARCHS.values()))
    source.write_text(re.sub(r"^ARCHS$", facts, text, flags=re.MULTILINE))
    program = source.with_suffix("")
    toolchain = dataclasses.replace(find_toolchain(), include_dirs=include_dirs)
    command = [
        part for part in toolchain.compile_command(str(source), str(program), 90) if part != "-c"
    ]
    subprocess.run(
        [
            *command,
            "-cudart=static",
            *([f"-L{toolchain.library_dir}"] if toolchain.library_dir else []),
        ],
        check=True,
    )
    return program
