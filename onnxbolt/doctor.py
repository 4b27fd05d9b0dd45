"""Examines a machine, and a model with its library: what is there, what is broken, and one remedy
for each finding."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from onnxbolt import archs, extensions, gpu
from onnxbolt.codegen import cache
from onnxbolt.codegen.limits import limited
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain, is_absent, remedy
from onnxbolt.errors import InputError, LibraryError, OnnxboltError, ToolchainError
from onnxbolt.graph.importer import load_model
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, metadata
from onnxbolt.library_file import Library, exported, read_manifest
from onnxbolt.options import cache_directory, cache_size
from onnxbolt.runtime import CUDA, cuda_failure, get_library_path
from onnxbolt.tune.library import cutlass_version
from onnxbolt.version import __version__

_SYMBOLS = ("RegisterCustomOps", "onnxbolt_manifest", "onnxbolt_probe")
_LEAST_SPACE = 2**30  # bytes that compiling a library may need
_SOURCE = '#include "cutlass/numeric_types.h"\n__global__ void nothing() {}\n'
_BODIES = "fused nodes run as their function bodies"


class State(Enum):
    OK = "ok"
    MISSING = "missing"  # some tasks need it, others do not
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """The state of one thing; `remedy` is empty where it is in order."""

    subject: str
    state: State
    words: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order in which things depend on one another."""

    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """True if nothing is broken."""
        return all(each.state is not State.BROKEN for each in self.findings)

    def text(self) -> str:
        """A line for each finding, and one for its remedy."""
        lines = []
        for each in self.findings:
            lines.append(f"{each.state.value:<8}{each.subject}: {each.words}")
            lines += [f"        {each.remedy}"] if each.remedy else []
        broken = sum(each.state is State.BROKEN for each in self.findings)
        return "\n".join([*lines, f"{broken} broken" if broken else "nothing is broken"])

    def json(self) -> str:
        """The same as JSON."""
        rows = [{**asdict(each), "state": each.state.value} for each in self.findings]
        return json.dumps({"findings": rows, "sound": self.sound}, indent=2)


def diagnose(model: str | Path | None = None) -> Diagnosis:
    """The findings about this machine and, if one is given, about an optimized model."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _compiler,
        _onnxruntime,
        _driver,
        _cuda_provider,
        _cache,
        _extensions,
    ]
    if model is not None:
        checks.append(lambda: _model(Path(model)))
    return Diagnosis(tuple(finding for check in checks for finding in check()))


def _of_error(subject: str, state: State, error: OnnxboltError, otherwise: str) -> Finding:
    """The finding that an error makes, whose words mostly end with a remedy; `otherwise` is that of
    an error without one."""
    for mark in ("; ", ". "):
        words, _, found = str(error).rpartition(mark)
        if words:
            return Finding(subject, state, words, found)
    return Finding(subject, state, str(error), otherwise)


def _compiler() -> Iterator[Finding]:
    try:
        toolchain = find_toolchain()
    except ToolchainError as error:
        state = State.MISSING if is_absent() else State.BROKEN
        yield _of_error("compiler", state, error, remedy())
        return
    if problem := _does_not_compile(toolchain):
        install = "pip install --force-reinstall 'onnxbolt[cuda]', or correct CUDA_HOME and PATH"
        yield Finding("compiler", State.BROKEN, f"{toolchain.nvcc}: {problem}", install)
    else:
        yield Finding("compiler", State.OK, f"CUDA {toolchain.version}, {toolchain.nvcc}")
    version = cutlass_version(toolchain)
    yield Finding("CUTLASS", State.OK, f"{version}, {toolchain.cutlass}")


def _does_not_compile(toolchain: Toolchain) -> str:
    """Why the compiler does not compile a kernel that does nothing; empty if it does."""
    arch = next(iter(archs.ARCHS))
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "unit.cu").write_text(_SOURCE, encoding="utf-8")
        command = limited(toolchain.compile_command("unit.cu", "unit.o", arch))
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[0][:300] if done.returncode else ""


def _onnxruntime() -> Iterator[Finding]:
    packages = {}
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    words = ", ".join(f"{name} {version}" for name, version in packages.items())
    try:
        providers = _providers()
    except ImportError as error:
        what = f"{words} cannot be imported: {error}" if packages else "it is not installed"
        install = "pip install onnxruntime-gpu (or onnxruntime, on a machine without a GPU)"
        yield Finding("ONNX Runtime", State.BROKEN, what, install)
        return
    if len(packages) > 1:
        yield Finding(
            "ONNX Runtime",
            State.BROKEN,
            f"{words}: two packages share one folder, so that files of both are mixed",
            "pip uninstall onnxruntime onnxruntime-gpu, then install one of them",
        )
        return
    yield Finding("ONNX Runtime", State.OK, f"{words}; {', '.join(providers)}")


def _providers() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def _driver() -> Iterator[Finding]:
    version, capability = gpu.driver_version(), gpu.compute_capability()
    if version is None:
        yield Finding(
            "driver",
            State.MISSING,
            f"no NVIDIA driver, so {_BODIES}",
            "install NVIDIA's driver where models are to run on a GPU; building needs none",
        )
        return
    yield Finding("driver", State.OK, f"runs programs of CUDA {version[0]}.{version[1]}")
    if capability is None:
        yield Finding(
            "GPU",
            State.BROKEN,
            "there is a driver, but no GPU that it can use",
            "see what nvidia-smi says; in a container, start it with --gpus all",
        )
        return
    here, local = f"{gpu.name()}, sm_{capability[0]}{capability[1]}", gpu.local_arch()
    if local is None:
        known = ", ".join(archs.names())
        yield Finding(
            "GPU",
            State.MISSING,
            f"{here}: onnxbolt has no kernels for it, so {_BODIES}",
            f"use a GPU of one of the architectures {known}",
        )
        return
    yield Finding("GPU", State.OK, f"{here}, served by kernels for {local}")
    try:
        needed = tuple(int(part) for part in find_toolchain().version.split(".")[:1])
    except ToolchainError:
        return
    if version < needed:
        yield Finding(
            "driver",
            State.BROKEN,
            f"it runs CUDA {version[0]}.{version[1]}, but libraries are built with CUDA"
            f" {needed[0]}, so {_BODIES}",
            "update the driver, or set CUDA_HOME to a toolkit that it runs",
        )


def _cuda_provider() -> Iterator[Finding]:
    try:
        listed = CUDA in _providers()
    except ImportError:
        return
    here = gpu.compute_capability() is not None
    if not listed:
        yield Finding(
            "CUDA provider",
            State.BROKEN if here else State.MISSING,
            f"this ONNX Runtime has none, so {_BODIES}",
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
            if here
            else "install onnxruntime-gpu on the machine with the GPU",
        )
    elif not here:
        yield Finding("CUDA provider", State.OK, "listed; without a GPU it is not used")
    elif reason := cuda_failure():
        yield Finding(
            "CUDA provider",
            State.BROKEN,
            reason,
            "install CUDA and cuDNN in the versions that onnxruntime-gpu names:"
            " pip install 'onnxruntime-gpu[cuda,cudnn]'",
        )
    else:
        yield Finding("CUDA provider", State.OK, "runs on the GPU")


def _cache() -> Iterator[Finding]:
    try:
        directory, limit = cache_directory(), cache_size()
        size = sum(entry.size for entry in cache.entries())
        free = shutil.disk_usage(directory).free
        with tempfile.TemporaryFile(dir=directory):
            pass
    except InputError as error:
        set_it = "correct ONNXBOLT_CACHE_DIR or ONNXBOLT_CACHE_SIZE"
        yield _of_error("cache", State.BROKEN, error, set_it)
        return
    except OSError as error:
        yield Finding(
            "cache",
            State.BROKEN,
            f"{error.filename}: {error.strerror}",
            "set ONNXBOLT_CACHE_DIR to a directory that you may write to",
        )
        return
    words = f"{directory}, {size / 2**20:.0f} MiB of at most {limit / 2**20:.0f}"
    if free < _LEAST_SPACE:
        yield Finding(
            "cache",
            State.BROKEN,
            f"{words}, but only {free / 2**20:.0f} MiB of the disk are free",
            "make room: onnxbolt cache clear --compiled",
        )
    else:
        yield Finding("cache", State.OK, words)


def _extensions() -> Iterator[Finding]:
    try:
        extensions.load()
    except OnnxboltError as error:
        yield _of_error("extensions", State.BROKEN, error, "update or uninstall the package")


def _model(path: Path) -> Iterator[Finding]:
    quoted = shlex.quote(str(path))
    again = f"write it anew: onnxbolt optimize ORIGINAL.onnx {quoted}"
    try:
        proto = load_model(path)
        found, manifest = inspect_model(proto), manifest_of_model(proto)
    except OnnxboltError as error:
        yield _of_error("model", State.BROKEN, error, again)
        return
    entries = metadata(proto)
    digest = entries.get("onnxbolt.digest", "")
    if "onnxbolt.digest" not in entries:
        words = f"{path} was not optimized by onnxbolt"
        yield Finding("model", State.MISSING, words, f"onnxbolt optimize {quoted} OUT.onnx")
        return
    if not found.nodes:
        yield Finding("model", State.OK, f"{path}: no fused nodes, hence no library")
        return
    nodes = "1 fused node" if len(found.nodes) == 1 else f"{len(found.nodes)} fused nodes"
    words, build = f"{path}: {nodes}", f"onnxbolt build {quoted}"
    if manifest.digest == digest:
        yield Finding("model", State.OK, words)
    else:
        version, build = entries.get("onnxbolt.version", "?"), again
        words += (
            f", written by onnxbolt {version}, whose kernels this one ({__version__}) lacks: it"
            " cannot build a library for them; one that was built then serves the model"
        )
        yield Finding("model", State.MISSING, words, again)
    yield from _library(get_library_path(path), digest, {n.op_type for n in found.nodes}, build)


def _library(path: Path, digest: str, ops: set[str], build: str) -> Iterator[Finding]:
    if not path.is_file():
        words = f"{path} does not exist, so {_BODIES}"
        yield Finding("library", State.MISSING, words, build)
        return
    try:
        content = path.read_bytes()
        manifest, symbols = read_manifest(content), exported(content)
    except (OSError, ValueError) as error:
        words = f"{path} is damaged or not an onnxbolt library: {error}"
        yield Finding("library", State.BROKEN, words, build)
        return
    if manifest.digest != digest:
        words = f"{path} belongs to another model: {manifest.digest[:12]} is not {digest[:12]}"
        yield Finding("library", State.BROKEN, words, build)
        return
    if lacking := [*sorted(set(_SYMBOLS) - symbols), *sorted(ops - set(manifest.ops))]:
        yield Finding("library", State.BROKEN, f"{path} lacks {', '.join(lacking)}", build)
        return
    held = ", ".join(f"sm_{arch}" for arch in manifest.archs)
    yield Finding("library", State.OK, f"{path}: digest {digest[:12]}, kernels for {held}")
    if gpu.compute_capability() is None:
        return
    try:
        arch, reason = Library(path, build).probe()
    except LibraryError as error:
        yield Finding("library", State.BROKEN, str(error), build)
        return
    if arch:
        yield Finding("library", State.OK, f"kernels for sm_{arch} run on this GPU")
    else:
        local = gpu.local_arch()
        yield Finding(
            "library",
            State.BROKEN,
            f"{path} does not run on this GPU: {reason}",
            f"onnxbolt optimize with --arch {local}" if local else "use another GPU",
        )
