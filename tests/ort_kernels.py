"""The CUDA kernels that ONNX Runtime registers, read from its own registry, on a machine without a
GPU too.

    # renews onnxbolt/precision/cuda_kernels.csv
    python -m tests.ort_kernels onnxruntime_gpu-*.whl

`get_all_opkernel_def` loads every provider of the build, and crashes where one does not load.
CUDA's needs NVIDIA's libraries, of which empty ones do: functions that return 0 (success). In
TensorRT's place stands a provider without kernels. The registry is read by a process of its own,
which such libraries cannot harm.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

import onnx

from onnxbolt.precision import kernel_table

FOREIGN = re.compile(r"lib(cu|nv)")  # libraries of NVIDIA
CUDA, TENSORRT = (f"libonnxruntime_providers_{name}.so" for name in ("cuda", "tensorrt"))
# not weak, and not of ONNX Runtime itself
CALLED = re.compile(r"(?m)^ +U (?!Provider_)(\w+)(?:@(\S+))?$")
DRIVER = re.compile(r"\0(cu[A-Z][A-Za-z]+(?:_v\d)?)(?=\0)")
READER = """
import json, sys
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
rows = [
    (k.op_name, k.version_range, k.type_constraints)
    for k in get_all_opkernel_def()
    if k.provider == "CUDAExecutionProvider" and k.domain == ""
]
json.dump(rows, open(sys.argv[1], "w"))
"""


# Objects as C++ lays them out, by their tables of virtual functions: a provider (whose first two
# functions make a factory) makes a factory, which makes an execution provider, which answers with a
# registry: an empty std::multimap. Destructors come first in the latter two.
PROVIDER = """
static void *registry[512] = {[3] = &registry[1], [4] = &registry[1]};
static void *nothing(void) { return 0; }
static void **get_registry(void **result) { result[0] = registry; result[1] = 0; return result; }
static void *execution_table[128] = {nothing, nothing, [2 ... 127] = get_registry};
static void *execution[512] = {execution_table};
static void **make_execution(void **result) { result[0] = execution; return result; }
static void *factory_table[16] = {nothing, nothing, [2 ... 15] = make_execution};
static void *factory[64] = {factory_table};
static void **make_factory(void **result) { result[0] = factory; result[1] = 0; return result; }
static void *provider_table[32] = {make_factory, make_factory, [2 ... 31] = nothing};
static void *provider[64] = {provider_table};
void *GetProvider(void) { return provider; }
"""


class UnreadableError(Exception):
    """The registry of an onnxruntime-gpu cannot be read here; the message says why."""


def registered(site: Path) -> set[kernel_table.Kernel]:
    """The CUDA kernels of the onnxruntime-gpu in `site` (a directory that holds the package
    `onnxruntime`).

    Raises UnreadableError where a file, a tool or a provider is missing, or where ONNX Runtime
    crashes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy, libraries, answer = (
            Path(scratch, name) for name in ("site", "libraries", "answer.json")
        )
        libraries.mkdir()
        try:
            _linked(site, copy)
            _stand_ins(site / "onnxruntime" / "capi" / CUDA, libraries)
            environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(copy)}
            _run(sys.executable, "-c", READER, str(answer), environment=environment)
        except OSError as error:
            raise UnreadableError(str(error)) from error
        except subprocess.CalledProcessError as error:
            ended = f"{Path(error.cmd[0]).name} ended with {error.returncode}"
            raise UnreadableError(f"{ended} {error.stderr.strip()}".strip()) from error
        rows = json.loads(answer.read_text())
    found = {
        kernel for op, (since, until), types in rows for kernel in kernels(op, since, until, types)
    }
    if not found:
        raise UnreadableError("ONNX Runtime registers no CUDA kernels")
    return found


def kernels(
    op: str, since: int, until: int, types: dict[str, list[str]]
) -> set[kernel_table.Kernel]:
    """One for each type that the operator's data may have; none for operators that only ONNX
    Runtime knows."""
    try:
        allowed = types.get(kernel_table.deciding_parameter(op, since), [])
    except onnx.defs.SchemaError:
        return set()
    return {
        kernel_table.Kernel(op, since, until, dtype.value)
        for dtype, name in kernel_table.TYPES.items()
        if name in allowed
    }


def _linked(site: Path, copy: Path) -> None:
    """The package `onnxruntime` in `copy`, by links, with a provider for TensorRT that has no
    kernels."""
    package = site / "onnxruntime"
    capi = copy / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    for path in [*package.iterdir(), *(package / "capi").iterdir()]:
        if path.name not in ("capi", TENSORRT):
            (copy / path.relative_to(site)).symlink_to(path.resolve())
    source = copy / "provider.c"
    source.write_text(PROVIDER)
    _run("gcc", "-shared", "-fPIC", "-w", "-o", str(capi / TENSORRT), str(source))


def _stand_ins(provider: Path, to: Path) -> None:
    """Empty libraries in place of those that `provider` is linked with."""
    needed = [
        name
        for name in re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "-d", str(provider)))
        if FOREIGN.match(name)
    ]
    called: dict[str, set[str]] = defaultdict(set, {name: set() for name in needed})
    for name, library in CALLED.findall(_run("nm", "-D", "--undefined-only", str(provider))):
        if needed and (library in needed or not library):
            called[library or needed[0]].add(name)
    # looked up by name when it is loaded
    called["libcuda.so.1"].update(DRIVER.findall(provider.read_bytes().decode("latin-1")))
    for library, names in called.items():
        _compile(to, library, names)


def _run(*command: str, environment: dict[str, str] | None = None) -> str:
    """The output of a command."""
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def _compile(to: Path, library: str, names: set[str]) -> None:
    source, versions = to / "source.c", to / "versions.map"
    source.write_text(
        "int stand_in;\n" + "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names))
    )
    # the providers ask for symbols of this version
    versions.write_text(f"{library} {{ global: *; }};\n")
    _run(
        "gcc",
        "-shared",
        "-fPIC",
        "-w",
        "-fno-builtin",
        f"-Wl,-soname,{library}",
        f"-Wl,--version-script={versions}",
        "-o",
        str(to / library),
        str(source),
    )


def _of_wheel(wheel: Path) -> tuple[str, set[kernel_table.Kernel]]:
    """The release ("1.25") and its kernels."""
    with tempfile.TemporaryDirectory() as site:
        zipfile.ZipFile(wheel).extractall(site)
        return kernel_table.release(wheel.name.split("-")[1]), registered(Path(site))


def main(wheels: list[str]) -> None:
    """Write the table of the releases in `wheels`."""
    kernel_table.PATH.write_text(
        kernel_table.text(dict(_of_wheel(Path(wheel)) for wheel in wheels))
    )


if __name__ == "__main__":
    main(sys.argv[1:])
