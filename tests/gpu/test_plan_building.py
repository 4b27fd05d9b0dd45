"""No convolution plan is built at a new size where every convolution is fused, by cuDNN's log."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.metadata import read_metadata
from onnxbolt.names import CONVOLUTIONS, NONE
from tests.gpu.plan_building import Log, Served, logged
from tests.gpu.prepared import ARCH
from tests.zoo.stored import load

pytestmark = pytest.mark.gpu

SIZES = {
    "unet.ts17.dynamic": ((1, 3, 64, 96), (1, 3, 128, 96)),
    "hifigan.ts17.dynamic": ((1, 40, 80), (1, 57, 80)),
}


@pytest.mark.parametrize("name", SIZES)
def test_no_plan_is_built_at_a_new_size(name: str, tmp_path: Path) -> None:
    """The original's runs are the control: a plan for each size. Behind those of the fused model,
    in one process with it, they build as many as alone, so that its log is a log."""
    original, fused = tmp_path / "original.onnx", tmp_path / "fused.onnx"
    model = load(name)
    (value,) = model.graph.input
    first, second = ({value.name: shape} for shape in SIZES[name])
    onnx.save(model, original)
    onnxbolt.optimize(
        model, fused, fuse="all", archs=(ARCH,), verify=False, min_shapes=first, max_shapes=second
    )
    assert read_metadata(fused)[CONVOLUTIONS] == NONE, "not every convolution is fused"

    def log(file: str, *served: Served) -> Log:
        return logged(served, tmp_path / f"{file}.txt")

    once = log("once", Served(str(original), False, [first]))
    twice = log("twice", Served(str(original), False, [first, second]))
    assert 0 < once.building.total() < twice.building.total(), (
        f"no control: {once} of one size, {twice} of two"
    )
    both = log(
        "both",
        Served(str(fused), True, [first, second]),
        Served(str(original), False, [first]),
    )
    assert both.building == once.building
