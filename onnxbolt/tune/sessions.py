"""ONNX Runtime sessions with inputs and outputs bound to the device, the settings worth trying, and
their timing.

Without a GPU everything runs on the CPU provider, timed by the clock, so that code built on this
module can be tested anywhere.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort

from onnxbolt import extra_ops
from onnxbolt.graph.capture import obstacle
from onnxbolt.graph.convolutions import convolutions, poolings
from onnxbolt.measurements.records import median_and_deviation
from onnxbolt.runtime import session_options
from onnxbolt.tune.cuda import CudaError, Stream
from onnxbolt.verify.session import CPU, CUDA, RUNTIME_ERRORS, available_providers

Arrays = Mapping[str, np.ndarray]
Name = TypeVar("Name")
# runs that many measurements, and returns the microseconds of each
Measure = Callable[[int], list[float]]
# the search for algorithms, two ordinary runs before a CUDA graph's capture, the capture, one more
_WARM_UP = 5
# the number that tells ONNX Runtime neither to capture a run in a CUDA graph nor to replay one
_NO_GRAPH = -1
_FAILURES: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, CudaError)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NUMPY = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": _BFLOAT16,
    "tensor(double)": np.dtype(np.float64),
    "tensor(bool)": np.dtype(np.bool_),
    **{
        f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


@dataclass(frozen=True)
class Setting:
    """The options of ONNX Runtime's CUDA provider that its users tune."""

    nhwc: bool = False
    search: str = "EXHAUSTIVE"
    graph: bool = False
    tf32: bool = True
    fuse_bias: bool = False  # cuDNN adds a convolution's bias; it refuses some shapes

    def __str__(self) -> str:
        fused = ", fused bias" if self.fuse_bias else ""
        return (
            f"{'NHWC' if self.nhwc else 'NCHW'}, {self.search},"
            f" {'CUDA graph' if self.graph else 'no graph'}{fused}"
        )

    def provider(self, stream: Stream) -> tuple[str, dict[str, str]]:
        """The CUDA provider with its options, as sessions take it."""
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
    """A model to run: its bytes or its file, its name, and the library of its fused nodes."""

    label: str
    model: bytes | Path
    library: Path | None = None

    @functools.cached_property
    def convolves(self) -> bool:
        """True if ONNX Runtime runs convolutions of the model by itself."""
        return next(convolutions(self._structure), None) is not None

    @functools.cached_property
    def pools(self) -> bool:
        """True if ONNX Runtime runs poolings of the model by itself."""
        return next(poolings(self._structure), None) is not None

    @functools.cached_property
    def uncapturable(self) -> str:
        """Why no run of the model can be captured in a CUDA graph; empty if nothing in the model
        says so."""
        return obstacle(self._structure)

    @property
    def _structure(self) -> onnx.ModelProto:
        if isinstance(self.model, Path):
            return onnx.load_model(self.model, load_external_data=False)
        return onnx.load_model_from_string(self.model)

    def settings(self, graphs: Sequence[bool] = (False, True)) -> Iterator[Setting]:
        """Every combination that can matter: layout matters for convolutions and poolings alone,
        algorithm search for convolutions."""
        layouts = (False, True) if self.convolves or self.pools else (False,)
        searches = ("EXHAUSTIVE", "HEURISTIC") if self.convolves else ("EXHAUSTIVE",)
        return (Setting(*choice) for choice in itertools.product(layouts, searches, graphs))


class Session:
    """One session on the GPU (or, without a stream, on the CPU), with its feeds bound once.
    Raises one of RUNTIME_ERRORS.

    Runs on a stream do not wait for the device, and leave the pinned buffers that they copied from
    to a later run that waits, or to the end of ONNX Runtime's session. That end frees them by a
    callback on the stream. If the rest of the session is gone before the callback is over, the
    callback frees the pinned arena as well, and so calls cudaFreeHost, which CUDA does not permit
    there (failure 800): the exception ends the process. Hence one more run, which waits, before a
    session goes. With a CUDA graph the buffers stay in use, and are freed without a callback.
    """

    _holds_buffers = False  # pinned ones, which ONNX Runtime would free by a callback

    def __init__(
        self, source: Source, setting: Setting, feeds: Arrays, stream: Stream | None
    ) -> None:
        if setting.graph and source.uncapturable:
            raise RuntimeError(f"no CUDA graph, since {source.uncapturable}")
        self._stream, self._device = stream, "cuda" if stream else "cpu"
        self._frees_by_callback = stream is not None and not setting.graph
        self._most_queued = sys.maxsize  # runs that can be enqueued at a time, as far as is known
        self._session = _session(source, setting, stream)
        self._bind(feeds, 0)

    def rebound(self, feeds: Arrays, graph: int) -> Session:
        """The same session of ONNX Runtime with other feeds, maybe of other sizes; `graph` is the
        number of its CUDA graph, from 1 on."""
        other = copy.copy(self)
        other._bind(feeds, graph)
        return other

    def __del__(self) -> None:
        if self._holds_buffers:
            self._free_buffers()

    def _free_buffers(self) -> None:
        """A run that waits for the device."""
        assert self._stream is not None
        try:
            self._session.run_with_iobinding(self._binding, ort.RunOptions())
            self._stream.synchronize()
        except _FAILURES:
            _never_freed(self._session)

    def _bind(self, feeds: Arrays, graph: int) -> None:
        self._binding = self._session.io_binding()
        for value in self._session.get_inputs():
            self._binding.bind_ortvalue_input(
                value.name, _ort_value(feeds[value.name].astype(_NUMPY[value.type]), self._device)
            )
        self._run_options = self._options(_NO_GRAPH)
        self._bind_outputs()
        self._run_options = self._options(graph)
        self.measure(_WARM_UP)

    def _options(self, graph: int) -> ort.RunOptions:
        options = ort.RunOptions()
        if self._stream:  # a run only enqueues work; events tell when it is done
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
            # without a number, a replay costs the host 33 us instead of 3 (onnxruntime-gpu 1.31)
            options.add_run_config_entry("gpu_graph_id", str(graph))
        return options

    def _bind_outputs(self) -> None:
        """Bind outputs to fixed addresses, as CUDA graphs need them. If the model leaves a size
        open, a first run finds it.

        That run is not captured: a graph would keep writing to the memory of that run's outputs.
        """
        outputs = self._session.get_outputs()
        shapes = [value.shape for value in outputs]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            for value in outputs:
                self._binding.bind_output(value.name, self._device)
            self.measure(1)
            shapes = [value.shape() for value in self._values()]
        for value, shape in zip(outputs, shapes, strict=True):
            self._binding.bind_ortvalue_output(
                value.name, _empty(shape, _NUMPY[value.type], self._device)
            )

    def measure(self, count: int) -> list[float]:
        """Microseconds of each of `count` runs: between CUDA events, or by the clock on the CPU."""
        if self._stream:
            return self._stream.time(self._run, count)
        return [self._timed() for _ in range(count)]

    def measure_queued(self, count: int) -> list[float]:
        """Microseconds of the device for each of `count` consecutive runs, as in
        `Stream.time_queued`, or of as many of them as can be enqueued at a time. Unless one can,
        and on the CPU, the median of `measure`."""
        while self._stream and (runs := min(count, self._most_queued)):
            if (us := self._stream.time_queued(self._run, runs)) is not None:
                return [us]
            self._most_queued = runs // 2
        return [statistics.median(self.measure(count))]

    @property
    def queues(self) -> bool:
        """False if `measure_queued` found that not even one run can be enqueued before it
        begins."""
        return self._most_queued > 0

    def outputs(self) -> list[np.ndarray]:
        """The outputs of the last run."""
        return [value.numpy() for value in self._values()]

    def _values(self) -> list[Any]:
        if self._stream:
            self._stream.synchronize()
        return list(self._binding.get_outputs())

    def _run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._run_options)
        except RUNTIME_ERRORS:
            self._holds_buffers = False
            if self._stream:
                _never_freed(self._session)
            raise
        self._holds_buffers = self._frees_by_callback

    def _timed(self) -> float:
        start = time.perf_counter()
        self._run()
        return (time.perf_counter() - start) * 1e6


def _session(source: Source, setting: Setting, stream: Stream | None) -> ort.InferenceSession:
    providers: list[Any] = [setting.provider(stream), CPU] if stream else [CPU]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ep.cuda.enable_gemm_auto_tune", "1")
    extra_ops.register(options)
    if source.library and stream:
        session_options(
            source.model, providers=providers, strict=True, library=source.library, options=options
        )
    elif source.library:
        session_options(source.model, providers=providers, options=options)
    model = str(source.model) if isinstance(source.model, Path) else source.model
    return ort.InferenceSession(model, options, providers=providers)


def _never_freed(session: ort.InferenceSession) -> None:
    """Keeps a session whose run failed on a stream of ours until the process ends.

    ONNX Runtime frees the pinned buffers of a failed run only with the session, which may end the
    process, as `Session` says.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


def _ort_value(array: np.ndarray, device: str) -> ort.OrtValue:
    if array.dtype != _BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(array, device, 0)
    value = _empty(array.shape, array.dtype, device)
    value.update_inplace(array.view(np.uint16))
    return value


def _empty(shape: Sequence[int], dtype: np.dtype, device: str) -> ort.OrtValue:
    # numpy has no such type; ONNX Runtime takes the bits
    element: Any = onnx.TensorProto.BFLOAT16 if dtype == _BFLOAT16 else dtype
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, device, 0)


@functools.cache
def cudnn_version() -> int:
    """The version of the cuDNN that ONNX Runtime has loaded (92000 is 9.20.0); 0 if there is
    none."""
    if CUDA not in available_providers():  # the call loads cuDNN
        return 0
    try:
        return int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except (OSError, AttributeError):
        return 0


@dataclass(frozen=True)
class Sample:
    """Microseconds of many runs of the same session."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def mad(self) -> float:
        """The median absolute deviation."""
        return median_and_deviation(self.times)[1]

    @property
    def spread(self) -> float:
        """The range from the 10th to the 90th percentile, as a part of the median."""
        deciles = statistics.quantiles(self.times, n=10, method="inclusive")
        return (deciles[-1] - deciles[0]) / self.median


def interleave(
    measures: Mapping[Name, Measure], rounds: int, runs: int, settle: float = 0.0
) -> dict[Name, Sample]:
    """`rounds` times `runs` measurements of each in turn, so that drifts of clock and temperature
    affect all alike. Rounds begin with another side each, and run forwards and backwards in turn.

    A GPU at its power limit favors the side that follows a pause, or a light one. With `settle`,
    each side runs for so many seconds by itself before its measurements of a round, so that the
    clock is that of its own steady load.
    """
    times: dict[Name, list[float]] = {name: [] for name in measures}
    for turn in range(rounds):
        for name in _order(tuple(measures), turn):
            measures[name](1)  # the first run after a change of session does not count
            end = time.perf_counter() + settle
            while time.perf_counter() < end:
                measures[name](runs)
            times[name] += measures[name](runs)
    return {name: Sample(tuple(values)) for name, values in times.items()}


def _order(names: tuple[Name, ...], turn: int) -> tuple[Name, ...]:
    first = turn // 2 % max(len(names), 1)
    order = names[first:] + names[:first]
    return order[::-1] if turn % 2 else order


@dataclass(frozen=True)
class Found:
    """The fastest source and setting of a search, its session, and the median of each one tried
    (or why it failed)."""

    source: Source
    setting: Setting
    session: Session
    tried: dict[str, float | str]


def search(
    sources: Sequence[Source],
    feeds: Arrays,
    stream: Stream | None,
    runs: int,
    graphs: Sequence[bool] = (False, True),
) -> Found:
    """The fastest of `sources` and their settings.

    Every setting is tried with the first source; then, for convolutions, the best of them and NHWC
    with the bias fused. The other sources, which differ in details, are tried with the best setting
    so far, with and without CUDA graph; `tried` says why there is none. Raises RuntimeError if
    nothing runs.
    """
    trial = _Trial(feeds, stream, runs)
    first, graphs = sources[0], graphs if stream else (False,)
    for setting in first.settings(graphs) if stream else (Setting(),):
        trial.attempt(first, setting)
    if stream and first.convolves:
        best = trial.found.setting
        # fusing can change which layout is faster
        for nhwc in dict.fromkeys((best.nhwc, True)):
            trial.attempt(first, replace(best, nhwc=nhwc, fuse_bias=True))
    for source in sources[1:]:
        setting = trial.found.setting
        for graph in graphs:
            trial.attempt(source, replace(setting, graph=graph))
    return trial.found


def only(source: Source, setting: Setting, feeds: Arrays, stream: Stream | None) -> Found:
    """`source` with this one setting. Raises one of RUNTIME_ERRORS."""
    return Found(source, setting, Session(source, setting, feeds, stream), {})


class _Trial:
    """The best setting so far. Only its session is kept, since each session holds the weights and a
    workspace."""

    def __init__(self, feeds: Arrays, stream: Stream | None, runs: int) -> None:
        self.feeds, self.stream, self.runs = feeds, stream, runs
        self.tried: dict[str, float | str] = {}
        self._best: tuple[float, Source, Setting, Session] | None = None

    @property
    def found(self) -> Found:
        if self._best is None:
            raise RuntimeError(f"no setting runs: {self.tried}")
        return Found(*self._best[1:], self.tried)

    def attempt(self, source: Source, setting: Setting) -> None:
        name = f"{source.label}: {setting}"
        if name in self.tried:
            return
        try:
            session = Session(source, setting, self.feeds, self.stream)
            median = statistics.median(session.measure(self.runs))
        except RUNTIME_ERRORS as error:
            self.tried[name] = f"failed: {str(error).splitlines()[0][:200]}"
            return
        self.tried[name] = round(median, 1)
        if self._best is None or median < self._best[0]:
            self._best = median, source, setting, session
