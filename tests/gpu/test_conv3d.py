"""Convolutions of volumes on a GPU against float64: every instance, strides, dilations, groups,
gaps between pixels, the same bits on every run, a large volume, and a model's nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from onnxbolt.opspec import configs_of_node
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.gpu import conv3ds
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import problems
from tests.gpu.reference import LIMITS, relative_error
from tests.support import Net

pytestmark = pytest.mark.gpu

FAMILY = named("conv3d_sm90")
KERNELS = [instance for instance in ALL if instance.config.family is FAMILY]
RUNS = 50


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance(library: Library, instance: Instance) -> None:
    kernel, limit = library.kernel(instance), LIMITS[instance.dtype]
    for problem in problems(library, instance):
        for captured in (False, True):
            kernel.launch(problem.arguments, captured)
            assert problem.expected is not None
            assert relative_error(problem.output.read(), problem.expected) <= limit


@pytest.mark.parametrize("instance", KERNELS[::5], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel, problem = library.kernel(instance), problems(library, instance)[-1]
    answers = set()
    for run in range(RUNS):
        kernel.launch(problem.arguments, captured=run % 2 == 1)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1


def test_many_tiles_of_each_block(library: Library) -> None:
    """Resident weights, and as many pixels as give each block several tiles."""
    resident = [instance for instance in KERNELS if instance.config.resident]  # type: ignore[attr-defined]
    shape = conv3ds.Shape((1, 64, 80, 72), 4, 4, (3, 3, 3), (1,) * 6)
    problem = conv3ds.problem(library, resident[0], shape)
    library.kernel(resident[0]).launch(problem.arguments, captured=False)
    assert problem.expected is not None
    error = relative_error(problem.output.read(), problem.expected)
    assert error <= LIMITS[resident[0].dtype]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("y_pitch", 1001, "not aligned to align_c"),
        ("x_pitch", 1001, "not aligned to align_a"),
        ("groups", 3, "multiples of groups"),
        ("pad_left", 17, "exceeds the 16 pixels"),
        ("stride_w", 9, "exceeds TMA's 8"),
    ],
)
def test_refusals(library: Library, field: str, value: int, text: str) -> None:
    problem = problems(library, KERNELS[0])[0]
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(KERNELS[0]).check(problem.arguments)


def test_images_are_another_kernel_s(library: Library) -> None:
    problem = problems(library, KERNELS[0])[0]
    problem.arguments.depth.y = 0
    with pytest.raises(KernelError, match="x is an image"):
        library.kernel(KERNELS[0]).check(problem.arguments)


def _model(stride: int, groups: int = 1) -> onnx.ModelProto:
    net = Net({"x": (2, 64, 10, 12, 14), "z": (2, 64, 10, 12, 14)})

    def conv(x: str, size: int, k: int = 64, **attributes: Any) -> str:
        width = 64 // attributes.get("group", 1)
        weight = net.normal(k, width, size, size, size, scale=(width * size**3) ** -0.5)
        return net.node("Conv", x, weight, net.normal(k), **attributes)

    y = net.node("Relu", conv("x", 1))
    y = net.node("Relu", conv(y, 3, pads=[1] * 6, group=groups, strides=[stride] * 3))
    other = conv("z", 1, strides=[stride] * 3)
    return net.model(conv(net.node("Relu", net.node("Add", y, other)), 1, 8))


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 4)])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_model_s_nodes_stay_within_their_limits(
    precision: str, stride: int, groups: int, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(_model(stride, groups), source)
    optimize(source, out, precision=precision, fuse="all", verify=False)
    nodes = [n for n in onnx.load(out).graph.node if n.op_type.startswith("FusedConv")]
    used = [{config.family for config in configs_of_node(node)} for node in nodes]
    assert used.count({FAMILY}) == (1 if stride == 1 else 2)
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


def test_shapes_meet_every_case() -> None:
    """Several volumes in a tile, all strides and dilations, groups, gaps."""
    shapes = conv3ds.SHAPES
    assert any(np.prod(s.y) < 64 and s.volumes[0] > 1 for s in shapes)
    assert {s.groups for s in shapes} == {1, 2}
    assert any(s.gap for s in shapes)
    assert any(len(set(s.dilations)) == 3 for s in shapes)
    assert len({replace(s, c=1) for s in shapes}) == len(shapes)
