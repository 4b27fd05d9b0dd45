"""ONNX Runtime sessions with inputs and outputs bound to the device, the settings worth trying, and their timing."""
from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

import onnxbolt
from benchmarks.cuda import Stream

Arrays = dict[str, np.ndarray[Any, Any]]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
ORT_ERRORS = (ort_state.Fail, ort_state.RuntimeException, ort_state.InvalidArgument, ort_state.NotImplemented, ort_state.EPFail)
_WARM_UP = 5  # the search for algorithms, two ordinary runs before a CUDA graph's capture, the capture, one more


@dataclass(frozen=True)
class Setting:
    """What users of ONNX Runtime's CUDA provider tune."""

    nhwc: bool = False
    search: str = "EXHAUSTIVE"
    graph: bool = False
    tf32: bool = True
    fuse_bias: bool = False  # cuDNN adds a convolution's bias; it refuses some shapes

    def __str__(self) -> str:
        fused = ", fused bias" if self.fuse_bias else ""
        return f"{'NHWC' if self.nhwc else 'NCHW'}, {self.search}, {'CUDA graph' if self.graph else 'no graph'}{fused}"

    def provider(self, stream: Stream) -> tuple[str, dict[str, str]]:
        return CUDA, {
            "prefer_nhwc": str(int(self.nhwc)),
            "cudnn_conv_algo_search": self.search,
            "cudnn_conv_use_max_workspace": "1",
            "enable_cuda_graph": str(int(self.graph)),
            "fuse_conv_bias": str(int(self.fuse_bias)),
            "use_tf32": str(int(self.tf32)),
            "user_compute_stream": stream.address,
        }


@dataclass(frozen=True)
class Source:
    """A model to run: its bytes, what to call it, and the library of its fused nodes."""

    label: str
    model: bytes
    library: Path | None = None

    @functools.cached_property
    def convolves(self) -> bool:
        """Whether ONNX Runtime runs convolutions of its own in it."""
        return any(node.op_type == "Conv" for node in onnx.load_from_string(self.model).graph.node)

    def settings(self) -> Iterator[Setting]:
        """Every combination that can matter to it: layout and search do so for convolutions alone."""
        layouts, searches = ((False, True), ("EXHAUSTIVE", "HEURISTIC")) if self.convolves else ((False,), ("EXHAUSTIVE",))
        return (Setting(*choice) for choice in itertools.product(layouts, searches, (False, True)))


class Session:
    """One session on the GPU (or, without a stream, on the CPU), with its feeds bound once."""

    def __init__(self, source: Source, setting: Setting, feeds: Arrays, stream: Stream | None) -> None:
        providers: list[Any] = [setting.provider(stream), CPU] if stream else [CPU]
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("ep.cuda.enable_gemm_auto_tune", "1")
        if source.library and stream:
            onnxbolt.session_options(source.model, providers=providers, strict=True, library=source.library, options=options)
        elif source.library:
            onnxbolt.session_options(source.model, providers=providers, options=options)
        self._session = ort.InferenceSession(source.model, options, providers=providers)
        self._stream, device = stream, "cuda" if stream else "cpu"
        self._binding = self._session.io_binding()
        self._run_options = ort.RunOptions()
        if stream:  # a run only enqueues; events tell when it is done
            self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for value in self._session.get_inputs():
            feed = feeds[value.name].astype(_numpy_type(value.type))
            self._binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(feed, device, 0))
        for value in self._session.get_outputs():
            empty = ort.OrtValue.ortvalue_from_shape_and_type(value.shape, _numpy_type(value.type), device, 0)
            self._binding.bind_ortvalue_output(value.name, empty)
        self.measure(_WARM_UP)

    def measure(self, count: int) -> list[float]:
        """Microseconds of each of `count` runs: between CUDA events, or by the clock on the CPU."""
        if self._stream:
            return self._stream.time(self._run, count)
        return [self._timed() for _ in range(count)]

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """The answers of the last run."""
        if self._stream:
            self._stream.synchronize()
        return [value.numpy() for value in self._binding.get_outputs()]

    def _run(self) -> None:
        self._session.run_with_iobinding(self._binding, self._run_options)

    def _timed(self) -> float:
        start = time.perf_counter()
        self._run()
        return (time.perf_counter() - start) * 1e6


def search(sources: list[Source], feeds: Arrays, stream: Stream | None, runs: int) -> tuple[Source, Setting, dict[str, float | str]]:
    """The fastest source and setting, with the median of each one tried (or why it failed).

    Every setting is tried with the first source, and the best of them for convolutions with their bias fused; the other
    sources, which differ in details, with the best so far, with and without CUDA graph.
    """
    tried: dict[tuple[Source, Setting], float] = {}
    log: dict[str, float | str] = {}

    def attempt(source: Source, setting: Setting) -> None:
        name = f"{source.label}: {setting}"
        if name in log:
            return
        try:
            tried[source, setting] = float(np.median(Session(source, setting, feeds, stream).measure(runs)))
            log[name] = round(tried[source, setting], 1)
        except ORT_ERRORS as error:
            log[name] = f"failed: {str(error).splitlines()[0][:200]}"

    for setting in sources[0].settings() if stream else (Setting(),):
        attempt(sources[0], setting)
    if not tried:
        raise RuntimeError(f"no setting runs {sources[0].label}: {log}")
    best = min(tried, key=tried.__getitem__)[1]
    if stream and sources[0].convolves:
        attempt(sources[0], replace(best, fuse_bias=True))
        best = min(tried, key=tried.__getitem__)[1]
    for source in sources[1:]:
        for graph in (False, True) if stream else (False,):
            attempt(source, replace(best, graph=graph))
    return *min(tried, key=tried.__getitem__), log


def _numpy_type(name: str) -> Any:
    return {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}[name]
