"""The benchmark of an nnU-Net block, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.floors import flops
from benchmarks.nnunet import BLOCK, Target, main
from tests.support import run


def test_the_block_is_that_of_the_target() -> None:
    model = Target().build("fp16")
    assert [node.op_type for node in model.graph.node] == [
        "Conv",
        "InstanceNormalization",
        "LeakyRelu",
    ] * 2
    assert flops(model) == 2 * 2 * 128**3 * 32 * 32 * 27
    onnx.checker.check_model(model, full_check=True)


def test_activations_keep_their_size() -> None:
    x = np.random.default_rng(0).standard_normal((1, 32, 8, 8, 8)).astype(np.float32)
    (y,) = run(Target(8).build(), {"x": x})
    assert 0.3 < float(y.std()) < 3


def test_a_quick_run_on_the_cpu_writes_a_row_with_both_sides(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert main(["--provider", "cpu", "--quick", "--side", "8", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["batch"], row["dtype"]) == ("nnU-Net block, 8^3", 1, "fp16")
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2


def test_pytorch_s_block_has_the_parameters_of_ours() -> None:
    block = pytest.importorskip("benchmarks.pytorch").MODELS[BLOCK]()
    ours = sum(math.prod(tensor.dims) for tensor in Target(8).build().graph.initializer)
    assert sum(p.numel() for p in block.parameters()) == ours
