"""Compiled configurations of kernels, launched on PyTorch's streams: for benchmarks whose operands
are PyTorch's tensors."""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.common import Row
from benchmarks.documents import write_results
from benchmarks.racing import say
from onnxbolt import gpu
from onnxbolt.archs import Arch, by_name
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.families.row import WIDTH
from onnxbolt.inspection import describe
from onnxbolt.problems import Problem
from onnxbolt.tune.library import build
from onnxbolt.tune.tasks import instance_of

_I, _L, _P, _Text = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p


class _Launch(ctypes.Structure):
    """Launch (custom_ops/runtime/kernel.h)."""

    _fields_ = (("workspace", _P), ("config", ctypes.POINTER(_L)), ("stream", _P), ("sm_count", _I))


class _Compiled(ctypes.Structure):
    """Kernel (custom_ops/runtime/kernel.h), up to the functions that are called here."""

    _fields_ = (
        ("epilogue", _Text),
        ("element", _I),
        ("output", _I),
        ("config", _L * WIDTH),
        ("at_launch", ctypes.c_uint32),
        ("shared_memory", _I),
        ("prepare", ctypes.CFUNCTYPE(_Text)),
        ("can_implement", ctypes.CFUNCTYPE(_Text, _P)),
        ("workspace_size", ctypes.CFUNCTYPE(ctypes.c_size_t, _P, ctypes.POINTER(_L))),
        ("run", ctypes.CFUNCTYPE(_Text, _P, _P)),
    )


class Kernel:
    """One compiled configuration, launched on PyTorch's current stream."""

    def __init__(self, problem: Problem, config: KernelConfig, library: Path) -> None:
        self.config, self._row = config, (_L * WIDTH)(*config.row())
        self._library = ctypes.CDLL(str(library))
        find = self._library.onnxbolt_find_kernel
        find.restype = ctypes.POINTER(_Compiled)
        key = ",".join(problem.chain).encode()
        found = find(key, problem.dtype.onnx, problem.out.onnx, self._row)
        if not found:
            raise OnnxboltError(f"{library} has no kernel {describe(config)}")
        self._kernel = found.contents
        self._require(self._kernel.prepare())

    def operation(self, arguments: Sequence[ctypes.Structure]) -> peers.Operation:
        """A launch with each of `arguments`. Raises OnnxboltError if the kernel refuses some."""
        bytes_needed = 0
        for each in arguments:
            self._require(self._kernel.can_implement(ctypes.byref(each)))
            size = self._kernel.workspace_size(ctypes.byref(each), self._row)
            bytes_needed = max(bytes_needed, size)
        torch = peers.pytorch()
        workspace = torch.zeros(bytes_needed, dtype=torch.uint8, device="cuda")
        run = functools.partial(self._run, arguments, workspace)
        return peers.Operation(run, len(arguments))

    def _run(self, arguments: Sequence[ctypes.Structure], workspace: Any, i: int) -> None:
        torch = peers.pytorch()
        device = torch.cuda.get_device_properties(0)
        stream = torch.cuda.current_stream().cuda_stream
        launch = _Launch(workspace.data_ptr(), self._row, stream, device.multi_processor_count)
        self._require(self._kernel.run(ctypes.byref(arguments[i]), ctypes.byref(launch)))

    def _require(self, error: bytes | None) -> None:
        if error:
            raise OnnxboltError(f"{describe(self.config)}: {error.decode()}")


def kernels(problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Kernel]:
    """Those of `configs` that compile without spilling; a line says why others do not."""
    instances = {instance_of(problem, config): config for config in configs}
    for instance, library in build(instances):
        if isinstance(library, Path):
            yield Kernel(problem, instances[instance], library)
        else:
            say(f"  not measured: {describe(instance.config)}: {library.detail[-200:]}")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that benchmarks of such kernels share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--build", action="store_true", help="compile the kernels for sm_90a, and measure nothing"
    )
    options.add_argument("--out", type=Path, help="result file")
    options.add_argument("--append", action="store_true", help="keep the file's other rows")
    options.add_argument("--verbose", action="store_true", help="print all configurations' times")
    return options


def compile_all(pairs: Iterable[tuple[Problem, KernelConfig]]) -> int:
    """Compile the kernels of all rows at once, so that all cores are busy. Returns 0, the exit
    status: a kernel that does not compile is named, and is not measured."""
    for instance, library in build([instance_of(*pair) for pair in pairs]):
        if not isinstance(library, Path):
            say(f"not measured: {describe(instance.config)}: {library.detail[-200:]}")
    return 0


def measured_rows(
    benchmark: str,
    measures: Iterable[Callable[[Arch], Row]],
    chosen: argparse.Namespace,
    planned: Iterable[tuple[str, int]],
    line: Callable[[Row], str],
) -> list[Row] | None:
    """The rows that `measures` make on the local GPU; the result file is written and `line` printed
    after each. `planned` are the names and batches of all rows that the benchmark has. None after
    an error, which is printed."""
    arch = gpu.local_arch()
    if arch is None or peers.pytorch() is None:
        print(
            "error: it needs an NVIDIA GPU of a supported architecture, and PyTorch",
            file=sys.stderr,
        )
        return None
    rows, planned = list[Row](), list(planned)
    try:
        for measure in measures:
            rows.append(measure(by_name(arch)))
            write_results(benchmark, rows, chosen.out, chosen.append, planned)
            say(line(rows[-1]))
            peers.release()
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return None
    return rows
