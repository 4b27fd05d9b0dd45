"""Parts that the benchmarks of whole models share: the stream that they run on, their inputs, and
the outputs of the fp32 model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.common import time_argument
from onnxbolt.archs import by_name
from onnxbolt.errors import OnnxboltError
from onnxbolt.gpu import local_arch
from onnxbolt.tolerances import relative_l2
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.library import profiler_library
from onnxbolt.tune.sessions import Arrays, Session, Setting, Source

LIMIT = 1e-2  # relative L2, of fp16 against fp32


def add_options(parser: argparse.ArgumentParser, benchmark: str) -> None:
    """The options for the cache, the result file of `benchmark` and the provider."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="onnxbolt's cache directory for this run"
    )
    parser.add_argument(
        "--out", type=Path, help=f"result file (default: benchmarks/results/{benchmark}-<gpu>.json)"
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the result file's rows of other models"
    )
    parser.add_argument(
        "--provider",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: function bodies, to try the script out",
    )


def add_tuning_options(parser: argparse.ArgumentParser) -> None:
    """The options for how onnxbolt's kernels are chosen, and how long measurements take."""
    parser.add_argument("--fuse", choices=("winning", "all"), default="winning")
    parser.add_argument(
        "--tune", action="store_true", help="measure kernels instead of predicting them"
    )
    parser.add_argument(
        "--budget", type=time_argument, help="with --tune: at most so long for each model, e.g. 2m"
    )
    parser.add_argument("--quick", action="store_true", help="few runs: a look, no measurement")


def add_racing_options(parser: argparse.ArgumentParser) -> None:
    """`add_tuning_options`, and how long PyTorch compiles for a race against it."""
    add_tuning_options(parser)
    parser.add_argument(
        "--compile-within",
        type=time_argument,
        default="3m",
        metavar="TIME",
        help="for each way of torch.compile with each model; 0s leaves it out (default: 3m)",
    )
    parser.add_argument(
        "--quick-compile",
        action="store_true",
        help="of torch.compile reduce-overhead alone, not max-autotune first",
    )


def stream_for(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> Stream | None:
    """The stream that the models run on, None for the CPU, with `--cache` in force. Without a GPU
    the program ends with exit code 1.

    With --tune the profiler is compiled here. In an empty cache that takes about half a minute,
    which would else be part of the first model's budget, or all of it.
    """
    use_cache(chosen)
    if chosen.provider == "cpu":
        return None
    try:
        stream = Stream()
        if getattr(chosen, "tune", False) and (arch := local_arch()):
            profiler_library(by_name(arch).number)
    except OnnxboltError as error:
        parser.exit(1, f"error: {error}; --provider cpu tries the script out without a GPU\n")
    return stream


def use_cache(chosen: argparse.Namespace) -> None:
    """Put `--cache` in force."""
    if chosen.cache:
        os.environ["ONNXBOLT_CACHE_DIR"] = str(chosen.cache.resolve())


def seeded_feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Seeded inputs, rounded to fp16 so that every precision gets the same; token numbers below
    1000, masks of ones."""
    rng, feeds = np.random.default_rng(0), dict[str, np.ndarray]()
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type != onnx.TensorProto.INT64:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        else:
            feeds[value.name] = (
                np.ones(shape, np.int64) if "mask" in value.name else rng.integers(0, 1000, shape)
            )
    return feeds


def exact_outputs(model: onnx.ModelProto, feeds: Arrays, stream: Stream | None) -> list[np.ndarray]:
    """The fp32 model's outputs, without TF32."""
    return Session(
        Source("fp32", model.SerializeToString()),
        Setting(search="HEURISTIC", tf32=False),
        feeds,
        stream,
    ).outputs()


def error_of(session: Session, reference: Sequence[np.ndarray]) -> float:
    """The largest relative L2 error of the session's last outputs."""
    return max(map(relative_l2, session.outputs(), reference))


def checked_error(label: str, session: Session, reference: Sequence[np.ndarray]) -> float:
    """`error_of`. Raises RuntimeError if it exceeds LIMIT."""
    if not (error := error_of(session, reference)) <= LIMIT:
        raise RuntimeError(f"{label}: relative error {error:.2g} exceeds {LIMIT}")
    return error
