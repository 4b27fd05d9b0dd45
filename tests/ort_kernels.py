"""The CUDA kernels that ONNX Runtime registers, read from its own registry, on a machine without a GPU too.

    python -m tests.ort_kernels onnxruntime_gpu-*.whl     # renews onnxbolt/precision/cuda_kernels.csv

`get_all_opkernel_def` loads every provider of the build. Their libraries need CUDA's and TensorRT's, of which empty ones do: functions
that return 0 (success). The registry is read by a process of its own, which such libraries cannot harm.
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
CALLED = re.compile(r"(?m)^ +U (?!Provider_)(\w+)(?:@(\S+))?$")  # not weak, and not of ONNX Runtime itself
DRIVER = re.compile(r"\0(cu[A-Z][A-Za-z]+(?:_v\d)?)(?=\0)")
READER = """
import json, sys
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
kernels = [k for k in get_all_opkernel_def() if k.provider == "CUDAExecutionProvider" and k.domain == ""]
json.dump([(k.op_name, k.version_range, k.type_constraints) for k in kernels], open(sys.argv[1], "w"))
"""


def registered(site: Path) -> set[kernel_table.Kernel]:
    """The CUDA kernels of the onnxruntime-gpu in `site` (a directory that holds the package `onnxruntime`)."""
    with tempfile.TemporaryDirectory() as empty, tempfile.NamedTemporaryFile(suffix=".json") as answer:
        _stand_ins(site / "onnxruntime" / "capi", Path(empty))
        environment = {**os.environ, "LD_LIBRARY_PATH": empty, "PYTHONPATH": str(site)}
        subprocess.run([sys.executable, "-c", READER, answer.name], env=environment, check=True, capture_output=True, timeout=600)
        rows = json.loads(Path(answer.name).read_text())
    return {kernel for op, (since, until), types in rows for kernel in kernels(op, since, until, types)}


def kernels(op: str, since: int, until: int, types: dict[str, list[str]]) -> set[kernel_table.Kernel]:
    """One for each type that the operator's data may have; none for operators that only ONNX Runtime knows."""
    try:
        allowed = types.get(kernel_table.deciding_parameter(op, since), [])
    except onnx.defs.SchemaError:
        return set()
    return {kernel_table.Kernel(op, since, until, dtype.value) for dtype, name in kernel_table.TYPES.items() if name in allowed}


def _stand_ins(capi: Path, to: Path) -> None:
    """Empty libraries in place of those that the providers in `capi` are linked with."""
    called: dict[str, set[str]] = defaultdict(set)
    for provider in sorted(capi.glob("libonnxruntime_providers_*.so")):
        dynamic = subprocess.run(["readelf", "-d", str(provider)], capture_output=True, text=True, check=True).stdout
        needed = [name for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic) if FOREIGN.match(name)]
        for name in needed:
            called[name]  # a library that no function is called of has to exist as well
        symbols = subprocess.run(["nm", "-D", "--undefined-only", str(provider)], capture_output=True, text=True, check=True).stdout
        for name, library in CALLED.findall(symbols):
            if needed and (library in needed or not library):
                called[library or needed[0]].add(name)
        called["libcuda.so.1"].update(DRIVER.findall(provider.read_bytes().decode("latin-1")))  # looked up by name when it is loaded
    for library, names in called.items():
        _compile(to, library, names)


def _compile(to: Path, library: str, names: set[str]) -> None:
    source, versions = to / "source.c", to / "versions.map"
    source.write_text("int stand_in;\n" + "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
    versions.write_text(f"{library} {{ global: *; }};\n")  # the providers ask for symbols of this version
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}",
                    "-o", str(to / library), str(source)], check=True)


def _of_wheel(wheel: Path) -> tuple[str, set[kernel_table.Kernel]]:
    """The release ("1.25") and its kernels."""
    with tempfile.TemporaryDirectory() as site:
        zipfile.ZipFile(wheel).extractall(site)
        return kernel_table.release(wheel.name.split("-")[1]), registered(Path(site))


def main(wheels: list[str]) -> None:
    """Write the table of the releases in `wheels`."""
    kernel_table.PATH.write_text(kernel_table.text(dict(_of_wheel(Path(wheel)) for wheel in wheels)))


if __name__ == "__main__":
    main(sys.argv[1:])
