"""The library of test kernels, compiled unless it already is."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from tests.gpu.build_kernels import build
from tests.gpu.cases import ARCH
from tests.gpu.device import Library


@pytest.fixture(scope="session")
def library() -> Library:
    path = Path(__file__).parents[2] / "build" / f"test-kernels-sm{ARCH}.so"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # one worker of pytest-xdist compiles it for all
        if not path.exists():
            build(path, ARCH)
    return Library(path)
