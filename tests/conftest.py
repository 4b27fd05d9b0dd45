"""Fixtures of all tests: a cache of compiled kernels apart from the user's, and the zoo's
models."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests import workers
from tests.gpu.runs import GpuRun
from tests.zoo.materialize import materialize

ROOT = Path(__file__).parents[1]
ZOO = Path(__file__).with_name("zoo")

# stages check what they require and ensure (onnxbolt/graph/promises.py), processes too
os.environ["ONNXBOLT_CHECK_PROMISES"] = "1"
# kept between runs: compiling is most of the time that the tests take
os.environ.setdefault("ONNXBOLT_CACHE_DIR", str(ROOT / "build" / "test-cache"))


class OneThread(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Options of sessions that run in the calling thread alone."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def pytest_configure(config: pytest.Config) -> None:
    """Workers of pytest-xdist keep every core busy already: further threads would spin beside
    them. Runs of the GPU tests have a plugin of their own."""
    is_gpu = config.getoption("markexpr") == "gpu"
    if is_gpu:
        config.pluginmanager.register(GpuRun())
    if "PYTEST_XDIST_WORKER" in os.environ:
        onnxruntime.SessionOptions = OneThread
        if is_gpu:
            workers.choose_gpu(os.environ, workers.gpus())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes half a million objects that stay: looking for garbage among them takes a
    quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], onnx.ModelProto]:
    """zoo("resnet50.ts") draws that graph's weights and returns the runnable model, up to 0.5
    GB."""
    return lambda name: materialize(onnx.load(ZOO / f"{name}.onnx", load_external_data=False))


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    """The smallest graph of the zoo that has GEMMs with activations, in a file."""
    path = tmp_path / "small.onnx"
    onnx.save(materialize(onnx.load(ZOO / "dcnv2.ts.onnx", load_external_data=False)), path)
    return path
