"""A GPU for every test that is marked so, and the library of test kernels, compiled unless it
already is."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from onnxbolt.verify.session import CUDA, available_providers
from tests.gpu.build_kernels import build
from tests.gpu.cases import ARCH
from tests.gpu.device import Library


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> None:
    """Fails where ONNX Runtime has no GPU: a comparison there would be one of function bodies."""
    if request.node.get_closest_marker("gpu") and CUDA not in available_providers():
        pytest.fail("ONNX Runtime has no CUDA device here, and this test is about kernels")


@pytest.fixture(scope="session")
def library() -> Library:
    path = Path(__file__).parents[2] / "build" / f"test-kernels-sm{ARCH}.so"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # one worker of pytest-xdist compiles it for all
        if not path.exists():
            build(path, ARCH)
    return Library(path)
