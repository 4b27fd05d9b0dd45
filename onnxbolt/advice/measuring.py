"""Times changed models on the local GPU beside the model as it is.

Predictions are times of the device, and so are these: of runs that were enqueued before the device
began, as CUDA graphs where they can be captured. The host's cost of a run is left out.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from onnx import ModelProto

from onnxbolt import gpu
from onnxbolt.advice.explanation import Measured
from onnxbolt.errors import InputError
from onnxbolt.options import Options, Shapes
from onnxbolt.pipeline import optimize
from onnxbolt.report import Report
from onnxbolt.runtime import get_library_path
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Sample, Session, Source, interleave, search
from onnxbolt.verify.feeds import drawn
from onnxbolt.verify.session import CUDA, available_providers

_ROUNDS, _RUNS, _SEARCH_RUNS = 10, 20, 20


def require_gpu() -> Stream:
    """The GPU's stream. Raises InputError or CudaError where there is none."""
    stream = Stream()
    if CUDA not in available_providers():
        raise InputError(
            "measuring needs a GPU, and this onnxruntime has no working CUDA provider: install"
            " onnxruntime-gpu"
        )
    return stream


def measure(
    models: Mapping[str, tuple[ModelProto, Shapes]],
    options: Options,
    stream: Stream | None,
    progress: Callable[[str], None],
) -> dict[str, Measured]:
    """The time of each model, in turns, with inputs of the shapes that stand beside it; without
    `stream` on the CPU, with function bodies instead of kernels.

    The models share the time for tuning, and the first alone is verified: the others are changes of
    it, and nobody gets them.
    """
    if options.budget is not None:
        options = dataclasses.replace(options, budget=options.budget / max(len(models), 1))
    with tempfile.TemporaryDirectory() as scratch:
        sessions, reports = dict[str, Session](), dict[str, Report]()
        for number, (key, (model, shapes)) in enumerate(models.items()):
            progress(f"building {key}")
            path = Path(scratch, f"{number}.onnx")
            own = dataclasses.replace(options, verify=options.verify and number == 0)
            reports[key] = _optimized(model, path, own, stream is not None, progress)
            library = get_library_path(path) if stream is not None else None
            source = Source(path.stem, path, library)
            feeds = drawn(model, shapes, options.seed)
            sessions[key] = _fastest(source, feeds, stream)
        progress(f"measuring {len(models)} models in turn")
        samples = interleave({k: s.measure_queued for k, s in sessions.items()}, _ROUNDS, _RUNS)
    device = (gpu.name() or "GPU") if stream else "CPU"
    return {key: _measured(device, sample, reports[key]) for key, sample in samples.items()}


def _measured(device: str, sample: Sample, report: Report) -> Measured:
    planned = report.whole[0].ours_us / 1000 if report.whole else None
    whole = report.tuning.whole if report.tuning else None
    ms = sample.median / 1000
    return Measured(device, ms, sample.spread, planned, whole, report.nothing_fused)


def _fastest(source: Source, feeds: Arrays, stream: Stream | None) -> Session:
    """The session of the fastest setting; with a CUDA graph, unless none can be captured."""
    try:
        return search([source], feeds, stream, _SEARCH_RUNS, (True,)).session
    except RuntimeError:  # no setting runs
        return search([source], feeds, stream, _SEARCH_RUNS, (False,)).session


def _optimized(
    model: ModelProto,
    path: Path,
    options: Options,
    library: bool,
    progress: Callable[[str], None],
) -> Report:
    local = gpu.local_arch()
    own = dataclasses.replace(
        options,
        archs=(local,) if library and local else options.archs,
        library=library,
        require_fused=None,
    )
    return optimize(model, path, options=own, progress=progress)
