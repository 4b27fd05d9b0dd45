"""Times changed models on the local GPU beside the model as it is, by the means of
`onnxbolt bench`."""

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
from onnxbolt.tune.sessions import Source, interleave, search
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
            source = _optimized(model, Path(scratch, f"{number}.onnx"), options, stream is not None)
            feeds = drawn(model, shapes, options.seed)
            sessions[key] = search([source], feeds, stream, _SEARCH_RUNS).session
        progress(f"measuring {len(models)} models in turn")
        samples = interleave({k: s.measure for k, s in sessions.items()}, _ROUNDS, _RUNS)
    device = (gpu.name() or "GPU") if stream else "CPU"
    return {key: Measured(device, s.median / 1000, s.spread) for key, s in samples.items()}


def _optimized(model: ModelProto, path: Path, options: Options, library: bool) -> Source:
    local = gpu.local_arch()
    own = dataclasses.replace(
        options,
        archs=(local,) if library and local else options.archs,
        library=library,
        require_fused=None,
    )
    optimize(model, path, options=own)
    return Source(path.stem, path, get_library_path(path) if library else None)
