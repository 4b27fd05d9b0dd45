"""The CUDA toolchain: the places of nvcc and CUTLASS, and the command lines that compile and link a
library.

It is searched in this order: the toolkit of CUDA_HOME, nvcc on the PATH, the pip wheels of the
extra `onnxbolt[cuda]`.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxbolt import archs
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.errors import ToolchainError
from onnxbolt.options import cuda_home
from onnxbolt.spelling import option

MINIMUM = (12, 8)  # the first version with which CUTLASS 4.2 compiles sm_90a kernels without spills

# one file of each wheel of the extra, whose absence shows that the wheel is missing
_WHEEL_FILES = {
    "nvidia-cuda-nvcc": "bin/nvcc",
    "nvidia-nvvm": "nvvm/bin/cicc",
    "nvidia-cuda-crt": "include/crt/host_defines.h",
    "nvidia-cuda-runtime": "lib/libcudart_static.a",
    "nvidia-cuda-cccl": "include/cccl",
}

# nvcc splits its arguments at commas and hands them to a shell, whose quotes and commands these are
_HARMFUL = re.compile("[\"'`,\n\r]")

_COMPILE = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
)
# The library contains the C++ runtime and exports only the C functions of exports.map, since it is
# loaded beside any other code. It does not contain libgcc_s: ONNX Runtime needs that as well, and
# the static libgcc needs the linking machine's C library (_dl_find_object of glibc 2.35).
_LINK = ("-shared", "-nodlink", "-cudart=static", "-Xcompiler=-static-libstdc++,-shared-libgcc")
# the libraries that hold the functions of custom_ops/runtime/portable.cc in an older glibc; a newer
# glibc has them empty
_OLD_LIBRARIES = (
    "-Xlinker=--push-state,--no-as-needed,"
    "-l:libpthread.so.0,-l:libdl.so.2,-l:librt.so.1,--pop-state"
)


def remedy() -> str:
    """The remedy for a missing part of the toolchain."""
    return (
        "Install the compiler with: pip install 'onnxbolt[cuda]', set CUDA_HOME to a CUDA"
        f" toolkit, or pass {option('library', False)} to compile nothing"
    )


@dataclass(frozen=True)
class Toolchain:
    """A compiler that works, with CUTLASS's headers."""

    nvcc: Path
    version: str  # "13.0.88"
    cutlass: Path  # holds include/ and tools/util/include/
    library_dir: Path | None = None  # folder of libcudart_static.a, if nvcc does not know it
    exports: str = "runtime/exports.map"  # in custom_ops/: the symbols that libraries export
    include_dirs: tuple[Path, ...] = ()  # folders of extensions' headers

    def compile_command(self, source: str, output: str, arch: int = 0) -> list[str]:
        """The command that compiles CUDA source for `arch` (80, 90, ..), or host code if it is
        0."""
        return [
            str(self.nvcc),
            *_COMPILE,
            *_target(arch),
            *self._includes(),
            "-c",
            source,
            "-o",
            output,
        ]

    def link_command(self, objects: Sequence[str], output: str) -> list[str]:
        """The command that links objects into a shared library, which contains the CUDA runtime and
        can be loaded without a driver."""
        search = [f"-L{self.library_dir}"] if self.library_dir else []
        exports = f"-Xlinker=--version-script={resource_dir('custom_ops') / self.exports}"
        return [str(self.nvcc), *_LINK, exports, *search, *objects, "-o", output, _OLD_LIBRARIES]

    def _includes(self) -> list[str]:
        system = (self.cutlass / "include", self.cutlass / "tools/util/include")
        ours = (resource_dir("custom_ops"), *self.include_dirs)
        for path in (*ours, *system):
            if _HARMFUL.search(str(path)):
                raise ToolchainError(
                    f"nvcc cannot read headers in {str(path)!r}: move the folder to a path without"
                    " quotes, backticks, commas and line breaks"
                )
        return [*(f"-I{path}" for path in ours), *(f"-isystem={path}" for path in system)]


def _target(arch: int) -> list[str]:
    if not arch:
        return []
    name = archs.get(arch).nvcc
    # the tuner reads from the log which kernels spill registers; libraries reuse the tuner's
    # objects, so both use the same flags
    return [f"-gencode=arch=compute_{name},code=sm_{name}", "-Xptxas=-warn-spills"]


def find_toolchain() -> Toolchain:
    """The first usable toolchain. Raises ToolchainError, which names the missing part and how to
    install it."""
    nvcc, library_dir = _find_nvcc()
    if shutil.which("g++") is None:
        raise ToolchainError(
            "no host compiler: nvcc needs g++ on the PATH. Install it (apt-get install g++), or"
            f" pass {option('library', False)}"
        )
    return Toolchain(nvcc, _version(nvcc), _find_cutlass(), library_dir)


def is_absent() -> bool:
    """True if this machine has no CUDA compiler, rather than one that cannot be used."""
    try:
        return cuda_home() is None and shutil.which("nvcc") is None and _wheel_root() is None
    except ToolchainError:
        return False


def _find_nvcc() -> tuple[Path, Path | None]:
    """The path of nvcc, and the directory of the CUDA runtime if nvcc does not find it by
    itself."""
    if home := cuda_home():
        nvcc = home / "bin" / "nvcc"
        if not nvcc.is_file():
            raise ToolchainError(
                f"CUDA_HOME is {home}, but {nvcc} does not exist. Correct CUDA_HOME or unset it"
            )
        if not _recent(_version(nvcc)):
            raise ToolchainError(
                f"CUDA_HOME is {home}, CUDA {_version(nvcc)}: {_dotted(MINIMUM)} or later is needed"
            )
        return nvcc, None
    on_path = shutil.which("nvcc")
    if on_path and _recent(_version(Path(on_path))):
        return Path(on_path), None
    wheels = _wheel_root()
    if wheels:
        return wheels / "bin" / "nvcc", wheels / "lib"  # nvcc looks in lib64, the wheels have lib
    if on_path:
        raise ToolchainError(
            f"{on_path} is CUDA {_version(Path(on_path))}: {_dotted(MINIMUM)} or later is needed."
            f" {remedy()}"
        )
    raise ToolchainError(f"no CUDA compiler found. {remedy()}")


def _wheel_root() -> Path | None:
    """The directory that the compiler's wheels share; None if the compiler's wheel is not
    installed."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for root in sorted(Path(location).glob("cu[0-9]*"), reverse=True):
            if not (root / "bin" / "nvcc").is_file():
                continue
            missing = [wheel for wheel, file in _WHEEL_FILES.items() if not (root / file).exists()]
            if missing:
                raise ToolchainError(
                    f"the CUDA compiler in {root} is incomplete: {', '.join(missing)} is missing."
                    f" {remedy()}"
                )
            return root
    return None


def _find_cutlass() -> Path:
    # found without an import, since the wheel's package imports modules that are not needed here
    spec = importlib.util.find_spec("cutlass_library")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        source = Path(location) / "source"
        if (source / "include" / "cutlass" / "version.h").is_file():
            return source
    raise ToolchainError(f"CUTLASS's headers are missing (wheel nvidia-cutlass). {remedy()}")


@functools.cache
def _version(nvcc: Path) -> str:
    try:
        result = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(f"{nvcc} cannot be run: {error}. {remedy()}") from error
    found = re.search(r"\bV(\d+\.\d+\.\d+)", result.stdout)
    if not found:
        raise ToolchainError(
            f"{nvcc} --version prints no version: {result.stdout.strip()[:200]!r}. {remedy()}"
        )
    return found.group(1)


def _recent(version: str) -> bool:
    return tuple(int(number) for number in version.split(".")[:2]) >= MINIMUM


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)
