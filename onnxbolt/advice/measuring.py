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
from onnxbolt.runtime import get_library_path
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Session, Source, interleave, search
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
    `stream` on the CPU, with function bodies instead of kernels."""
    with tempfile.TemporaryDirectory() as scratch:
        sessions = {}
        for number, (key, (model, shapes)) in enumerate(models.items()):
            progress(f"building {key}")
            path = Path(scratch, f"{number}.onnx")
            source = _optimized(model, path, options, stream is not None, progress)
            feeds = drawn(model, shapes, options.seed)
            sessions[key] = _fastest(source, feeds, stream)
        progress(f"measuring {len(models)} models in turn")
        samples = interleave({k: s.measure_queued for k, s in sessions.items()}, _ROUNDS, _RUNS)
    device = (gpu.name() or "GPU") if stream else "CPU"
    return {key: Measured(device, s.median / 1000, s.spread) for key, s in samples.items()}


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
) -> Source:
    local = gpu.local_arch()
    own = dataclasses.replace(
        options,
        archs=(local,) if library and local else options.archs,
        library=library,
        require_fused=None,
    )
    optimize(model, path, options=own, progress=progress)
    return Source(path.stem, path, get_library_path(path) if library else None)
