"""Transposed convolutions on a GPU against float64: every instance, cut phases, groups, gaps
between pixels, the same bits on every run, and a model's nodes."""

from __future__ import annotations

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
from tests.gpu import conv_transposes
from tests.gpu.cases import ALL
from tests.gpu.conv_transposes import stores_slices
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import problems
from tests.gpu.reference import LIMITS, relative_error
from tests.support import Net
from tests.volumes import unet

pytestmark = pytest.mark.gpu

FAMILY = named("conv_transpose_sm90")
KERNELS = [instance for instance in ALL if instance.config.family is FAMILY]
RUNS = 50


def test_some_instances_store_slices_of_volumes() -> None:
    assert {stores_slices(instance) for instance in KERNELS} == {False, True}


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


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("y_pitch", 1001, "not aligned to align_c"),
        ("y", 8, "not aligned to align_c"),
        ("x_pitch", 1001, "not aligned to align_a"),
        ("groups", 3, "multiples of groups"),
    ],
)
def test_refusals(library: Library, field: str, value: int, text: str) -> None:
    problem = problems(library, KERNELS[0])[0]
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(KERNELS[0]).check(problem.arguments)


def test_images_and_slices_are_other_kernels_s(library: Library) -> None:
    for slices, text in ((False, "one image of y"), (True, "several slices of y")):
        kernel = next(instance for instance in KERNELS if stores_slices(instance) == slices)
        problem = problems(library, kernel)[0]
        problem.arguments.pixels.d = 1 if slices else 2
        with pytest.raises(KernelError, match=text):
            library.kernel(kernel).check(problem.arguments)


def test_rows_are_another_kernel_s(library: Library) -> None:
    problem = problems(library, KERNELS[0])[0]
    problem.arguments.pixels = type(problem.arguments.pixels)(1, 1)
    with pytest.raises(KernelError, match="stored in rows"):
        library.kernel(KERNELS[0]).check(problem.arguments)


def _model(kernel: int, pad: int, groups: int = 1) -> onnx.ModelProto:
    net = Net({"x": (2, 64, 24, 40), "z": (2, 64, 48, 80)})
    y = net.node("Relu", net.conv("x", 64, 64))
    weight = net.normal(64, 64 // groups, kernel, kernel, scale=0.06)
    y = net.node(
        "ConvTranspose",
        y,
        weight,
        net.normal(64),
        strides=[2, 2],
        pads=[pad] * 4,
        output_padding=[kernel % 2] * 2,
        group=groups,
    )
    y = net.node("Relu", net.node("Add", y, net.conv("z", 64, 64)))
    return net.model(net.conv(y, 64, 8))


@pytest.mark.parametrize(("kernel", "pad", "groups"), [(2, 0, 1), (4, 1, 1), (3, 1, 1), (4, 1, 4)])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_model_s_node_stays_within_its_limits(
    precision: str, kernel: int, pad: int, groups: int, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(_model(kernel, pad, groups), source)
    optimize(source, out, precision=precision, fuse="all", verify=False)
    nodes = [n for n in onnx.load(out).graph.node if n.op_type.startswith("FusedConvTranspose")]
    assert [{c.family for c in configs_of_node(node)} for node in nodes] == [{FAMILY}]
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_unet_of_volumes_stays_within_its_limits(precision: str, tmp_path: Path) -> None:
    """Its transposed convolutions and its MaxPool."""
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(unet(), source)
    optimize(source, out, precision=precision, fuse="all", verify=False)
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert sum(kind.startswith("FusedConvTranspose") for kind in kinds) == 2
    assert sum(kind.startswith("MaxPool_nhwc") for kind in kinds) == 1
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


# slices of x that make one, two or three slices of y, with phases that are cut, unlike, and in rows
VOLUMES = [
    ((1, 2, 2), {"strides": [1, 2, 2]}),
    ((1, 1, 2), {"strides": [1, 1, 2]}),
    ((2, 4, 3), {"strides": [2, 2, 2], "pads": [0, 1, 1, 0, 1, 1]}),
    ((3, 1, 2), {"strides": [3, 1, 2]}),
    ((1, 2, 2), {"strides": [2, 2, 2], "output_padding": [1, 0, 0]}),
    ((2, 2, 2), {"strides": [2, 2, 2], "group": 2}),
]


@pytest.mark.parametrize(("kernel", "attributes"), VOLUMES)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_volume_s_node_stays_within_its_limits(
    precision: str, kernel: tuple[int, ...], attributes: dict[str, Any], tmp_path: Path
) -> None:
    """With a residual, which the kernel reads where it writes the pixels."""
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    net = Net({"x": (2, 32, 5, 9, 12)})
    y = net.node("Relu", net.node("Conv", "x", net.normal(32, 32, 1, 1, 1, scale=0.2)))
    weight = net.normal(32, 32 // attributes.get("group", 1), *kernel, scale=0.2)
    up = net.node("ConvTranspose", y, weight, net.normal(32), **attributes)
    y = net.node("Add", net.node("Relu", up), net.node("ConvTranspose", y, weight, **attributes))
    onnx.save(net.model(net.node("Conv", y, net.normal(8, 32, 1, 1, 1, scale=0.2))), source)
    optimize(source, out, precision=precision, fuse="all", verify=False)
    nodes = [n for n in onnx.load(out).graph.node if n.op_type.startswith("FusedConvTranspose")]
    assert len(nodes) == 2
    # bf16 models have groups in fp32, between Casts
    in_fp32 = precision == "bf16" and "group" in attributes
    assert in_fp32 or any("_Add_" in node.op_type for node in nodes)
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")


def test_shapes_meet_every_case() -> None:
    """Tiles with several phases and with several images, phases that are cut on each side."""
    shapes = conv_transposes.SHAPES
    assert {min(s.cut) > 0 for s in shapes} == {max(s.short) > 0 for s in shapes} == {True, False}
    assert np.prod([s.groups for s in shapes]) > 1
    assert {s.slices for s in shapes} == {1, 2, 3, 4}
