"""Compile the kernels of the GPU tests into one library: `python -m tests.gpu.build_kernels OUT.so --arch 90`.

Objects come from onnxbolt's cache of compiled units, so that a second call only links. Needs no GPU.
"""
from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain
from onnxbolt.codegen.render import Instance, render_unit
from onnxbolt.kernels.config import Family
from tests.gpu.cases import instances

# kernels to a unit: few where one takes long to compile, so that all cores are busy to the end
UNIT_SIZE = {Family.GEMM_2X: 4, Family.CONV_2X: 4, Family.GEMM_3X: 2, Family.POOL: 3}


def units(kernels: Sequence[Instance]) -> list[Unit]:
    """Translation units of one family each, the slow ones first."""
    found = []
    for family in (Family.GEMM_3X, Family.GEMM_2X, Family.CONV_2X, Family.POOL):
        members = [kernel for kernel in kernels if kernel.config.family is family]
        size = UNIT_SIZE[family]
        for start in range(0, len(members), size):
            chunk = members[start : start + size]
            found.append(Unit(f"{family.name.lower()}_{start // size}.cu", render_unit(chunk), chunk[0].config.arch))
    return found


def build(output: Path, arch: int, progress: Callable[[str], None] = print) -> None:
    """Compile and link the test kernels of `arch`. Raises BuildError with the compiler's log."""
    toolchain = find_toolchain()
    launcher = Unit("launcher.cc", Path(__file__).with_name("launcher.cc").read_text())
    compiled = units(instances(arch))
    objects = compile_units([launcher, *compiled], toolchain, progress)
    for unit, path in zip(compiled, objects[1:], strict=True):
        for complaint in spills(path.with_name("unit.log")):
            progress(f"{unit.name}: {complaint}")
    output.parent.mkdir(parents=True, exist_ok=True)
    _link(objects, output, toolchain)


def spills(log: Path) -> list[str]:
    """Lines of a compiler's log that tell of slow code: registers spilled, wgmma serialized."""
    return [line for line in log.read_text().splitlines() if re.search(r"spilled|C7510|C7511", line)] if log.exists() else []


def _link(objects: Sequence[Path], output: Path, toolchain: Toolchain) -> None:
    # not Toolchain.link_command: its export map keeps the launcher's functions in
    command = [part for part in toolchain.link_command([str(path) for path in objects], str(output)) if "version-script" not in part]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--arch", type=int, default=90, choices=(75, 80, 86, 89, 90))
    arguments = parser.parse_args()
    build(arguments.output, arguments.arch)


if __name__ == "__main__":
    main()
