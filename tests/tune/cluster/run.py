"""`onnxbolt` with two GPUs of fake_gpu.py: python -m tests.tune.cluster.run FOLDER ARGUMENT.."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxbolt.cli import main
from tests.tune.cluster.conftest import fake_cluster

if __name__ == "__main__":
    fake_cluster(pytest.MonkeyPatch(), Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
