"""Run an optimized model once on CUDA with its library: `python -m tests.gpu.run_once
MODEL.onnx`, for compute-sanitizer."""

from __future__ import annotations

import sys

import onnxruntime as ort

import onnxbolt
from onnxbolt.graph.importer import load_model
from onnxbolt.verify.feeds import random_feeds


def main(path: str) -> None:
    session = ort.InferenceSession(
        path, onnxbolt.session_options(path, strict=True), providers=["CUDAExecutionProvider"]
    )
    session.run(None, random_feeds(load_model(path), 0))


if __name__ == "__main__":
    main(sys.argv[1])
