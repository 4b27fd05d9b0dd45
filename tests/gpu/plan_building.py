"""Convolution plans that cuDNN builds while ONNX Runtime runs models, by cuDNN's own log of its
API, with questions to its heuristics and searches on the way to them.

`python -m tests.gpu.plan_building '[["model.onnx", true, [{"x": [1, 3, 64, 64]}]]]'` runs models
one after another on CUDA, each in one session, at each of its sizes; true: with its library.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnxruntime as ort

import onnxbolt
from onnxbolt.graph.importer import load_model
from onnxbolt.verify.feeds import drawn

ROOT = Path(__file__).parents[2]
# one call of the API, as cuDNN 8 and 9 write it: 'I! CuDNN (v91200 46) function cudnnX() called:'
_CALL = re.compile(r"^I! CuDNN \([^)]*\) function (\w+)\(\) called:", re.MULTILINE)
# descriptors of the graph API that are made on the way to a plan
_DESCRIPTOR = re.compile(r"CUDNN_BACKEND_(EXECUTION_PLAN|ENGINEHEUR)_DESCRIPTOR")
_MAKES = ("cudnnBackendCreateDescriptor", "cudnnBackendFinalize")
# the older API's
_SEARCHES = re.compile(r"cudnn(Find|Get)Convolution\w*Algorithm")


@dataclass(frozen=True)
class Served:
    """A model's path, whether it runs with its library, and the shapes of its inputs in each
    run."""

    path: str
    fused: bool
    sizes: Sequence[Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class Log:
    """cuDNN's calls: all by name, and those on the way to a plan."""

    calls: Counter[str]
    building: Counter[str]

    @classmethod
    def of(cls, text: str) -> Log:
        """Those of a log of level 3."""
        _, *pieces = _CALL.split(text)
        pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
        named = (_step(name, details) for name, details in pairs)
        return cls(Counter(name for name, _ in pairs), Counter(name for name in named if name))


def _step(function: str, details: str) -> str:
    """A name for a call on the way to a plan, '' for other calls."""
    if _SEARCHES.match(function):
        return function
    # the descriptor that the call is about comes first, those that it holds behind it
    first = re.search(r"CUDNN_BACKEND_\w+_DESCRIPTOR", details)
    about = function in _MAKES and first and _DESCRIPTOR.fullmatch(first[0])
    return f"{function} {first[0]}" if about and first else ""


def logged(served: Sequence[Served], file: Path, seconds: float = 300) -> Log:
    """cuDNN's log of a process that serves these models. Raises RuntimeError where it fails."""
    environment = {**os.environ, "CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(file)}
    command = [sys.executable, "-m", "tests.gpu.plan_building", json.dumps([*map(asdict, served)])]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    if done.returncode:
        raise RuntimeError(f"the models did not run: {done.stdout}{done.stderr}"[-2000:])
    return Log.of(file.read_text(errors="replace") if file.exists() else "")


def main(argument: str) -> None:
    for entry in json.loads(argument):
        _serve(Served(**entry))


def _serve(served: Served) -> None:
    model = load_model(Path(served.path))
    provider = onnxbolt.cuda_provider(served.path, cudnn_conv_algo_search="DEFAULT")
    options = ort.SessionOptions()
    if served.fused:
        onnxbolt.session_options(served.path, strict=True, options=options)
    session = ort.InferenceSession(served.path, options, providers=[provider])
    assert session.get_providers()[0] == provider[0], "the CUDA provider does not load"
    for shapes in served.sizes:
        session.run(None, drawn(model, {name: tuple(at) for name, at in shapes.items()}, 0))


if __name__ == "__main__":
    main(sys.argv[1])
