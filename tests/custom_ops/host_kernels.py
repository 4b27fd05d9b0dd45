"""Kernels of custom_ops/families/ compiled for the host, where fibers stand for a GPU's threads
(host/emulated/emulator.h)."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from onnxbolt.archs import get
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import Instance, arch_source, instance_name, render_unit
from onnxbolt.codegen.resources import resource_dir

_HOST = Path(__file__).with_name("host")
_PLACE = "// here come the architectures and Kernels, a tuple of instances"


def compile_kernels(source: str, instances: Sequence[Instance], directory: Path) -> Path:
    """The library that a file of host/ becomes with the types of `instances`, in `directory`."""
    archs = sorted({instance.config.arch for instance in instances})
    kernels = ",\n".join(map(_type, instances))
    text = (_HOST / source).read_text()
    assert text.count(_PLACE) == 1
    sources = [*(arch_source(get(arch)) for arch in archs), "#include <tuple>"]
    text = text.replace(_PLACE, "\n".join([*sources, f"using Kernels = std::tuple<{kernels}>;"]))
    written = directory / source
    written.write_text(text)
    library = written.with_suffix(".so")
    toolchain = find_toolchain()
    folders = (_HOST / "emulated", _HOST, resource_dir("custom_ops"), toolchain.cutlass / "include")
    command = [str(toolchain.nvcc), "-x", "c++", "-std=c++17", "-O1", "-shared", "-cudart=none"]
    includes = [f"-I{folder}" for folder in folders]
    # permissive: headers of CUTLASS name intrinsics that nothing here calls
    flags = ["-Xcompiler=-fPIC,-w,-fpermissive", *includes, str(written), "-o", str(library)]
    subprocess.run([*command, *flags], check=True)
    return library


def _type(instance: Instance) -> str:
    """The instance's type in C++."""
    text = render_unit([instance])
    begin = text.index("onnxbolt::", text.index(f"using {instance_name(instance)} ="))
    return text[begin : text.index(";", begin)]
