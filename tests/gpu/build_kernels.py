"""Compile the kernels of the GPU tests into one library, which the tuner's profiler can load as
well: `python -m tests.gpu.build_kernels OUT.so --arch 90`. `--only norm,layout` compiles the
kernels of these families alone, for those of the tests that need no others.

Objects come from onnxbolt's cache of compiled units, so that a second call only links. Needs no
GPU.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from onnxbolt.codegen.artifacts import Unit
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.families import named
from onnxbolt.tune.library import host_units
from tests.codegen.compilation import compile_all, units, watchful
from tests.gpu.cases import instances

# these take long to compile
SLOW = (
    named("gemm_3x"),
    named("gemm_sm90"),
    named("conv_sm90"),
    named("conv3d_sm90"),
    named("conv_transpose_sm90"),
    named("quantized_gemm_sm90"),
    named("quantized_conv_sm90"),
    named("halo_sm90"),
    named("stem_sm90"),
    named("b2b_gemm_sm90"),
    named("b2b_conv_sm90"),
    named("gemm_rows_sm90"),
    named("b2b_halo_sm90"),
    named("b2b_stem_sm90"),
    named("b2b_stored_sm90"),
    named("b2b_gemm_wide_sm90"),
)


def build(
    output: Path,
    arch: int,
    progress: Callable[[str], None] = print,
    only: Collection[str] = (),
) -> None:
    """Compile and link the test kernels of `arch`, those of the families called `only` if there are
    such names; slow code is reported. Raises BuildError with the compiler's log."""
    families = {named(name) for name in only}
    kernels = [k for k in instances(arch) if not families or k.config.family in families]
    toolchain = watchful()
    # small units, the slow ones first: all cores are busy to the end
    slow = [kernel for kernel in kernels if kernel.config.family in SLOW]
    rest = [kernel for kernel in kernels if kernel.config.family not in SLOW]
    host = [Unit("launcher.cc", Path(__file__).with_name("launcher.cc").read_text()), *host_units()]
    objects, complaints = compile_all(
        [*units(slow, 2), *units(rest, 4), *host], toolchain, progress
    )
    for complaint in complaints:
        progress(complaint)
    output.parent.mkdir(parents=True, exist_ok=True)
    _link(objects, output, toolchain)


def _link(objects: Sequence[Path], output: Path, toolchain: Toolchain) -> None:
    # without the export map of Toolchain.link_command, which would hide the launcher's functions
    command = [
        part
        for part in toolchain.link_command([str(path) for path in objects], str(output))
        if "version-script" not in part
    ]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--arch", type=int, default=90, choices=(75, 80, 86, 89, 90))
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=(), metavar="FAMILY,.."
    )
    arguments = parser.parse_args()
    build(arguments.output, arguments.arch, only=arguments.only)


if __name__ == "__main__":
    main()
