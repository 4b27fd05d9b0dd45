"""Predicted times of nodes that stay with ONNX Runtime, against measurements (microseconds)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import Node
from onnxbolt.plan.node_times import node_us
from onnxbolt.plan.ranges import AS_IS
from onnxbolt.problems import GemmProblem

SM90 = get(90)


def _us(
    op: str, y: tuple[int, ...], *inputs: tuple[int, ...], arch: Arch = SM90, **attributes: Any
) -> float:
    """The predicted time of a node in fp16."""
    made = [gs.Variable(f"x{i}", "float16", shape) for i, shape in enumerate(inputs)]
    node = Node(op, "node", attributes, made, [gs.Variable("y", "float16", y)])
    return node_us(node, arch, AS_IS)


def test_cudnn_waits_at_each_position_of_a_line() -> None:
    """A model took 213 us, of which kernels of ours were planned to take 65 (H100)."""
    mean = _us("GlobalAveragePool", (32, 128, 1), (32, 128, 1024))
    assert mean == pytest.approx(213 - 65, rel=0.15)
    assert mean == _us("GlobalMaxPool", (32, 128, 1), (32, 128, 1024))
    assert mean == _us("AveragePool", (32, 128, 1), (32, 128, 1024), kernel_shape=[1024])


def test_windows_of_images_are_bound_by_memory() -> None:
    y = (32, 64, 56, 56)
    pooled = _us("MaxPool", y, (32, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2])
    moved = 2 * 32 * 64 * (112 * 112 + 56 * 56)
    assert pooled == pytest.approx(SM90.launch_us + moved / (0.7 * 4.8e12) * 1e6, rel=0.3)


def test_means_of_images_wait_less() -> None:
    """MobileNetV3 took 438 us at batch 1, with three means of 28x28 pixels (H200)."""
    assert _us("GlobalAveragePool", (1, 120, 1, 1), (1, 120, 28, 28)) < 5


def test_attention_with_a_mask_takes_its_scores_through_memory() -> None:
    """DETR's attention: about 40 us of 48.5 were the operator's (H100); without a mask ONNX Runtime
    runs flash attention, 32 us in ViT-B/16 at batch 32 (H200)."""
    q, mask = (1, 8, 1050, 32), (1, 1, 1, 1050)
    h100 = dataclasses.replace(SM90, bandwidth=3.35e12)
    assert _us("Attention", q, q, q, q, mask, arch=h100) == pytest.approx(40, rel=0.2)
    vit = (32, 197, 12 * 64)
    flash = _us("Attention", vit, vit, vit, vit, q_num_heads=12, kv_num_heads=12)
    assert flash == pytest.approx(32, rel=0.1)


def test_products_take_what_the_libraries_take() -> None:
    """A grouped convolution of 24 channels to a group took 41 us, and one of 48 to a group 55.5
    (H200; tests/plan/test_grouped.py)."""
    x = (32, 336, 14, 14)
    assert _us("Conv", x, x, (336, 24, 3, 3), group=14) == pytest.approx(41, rel=0.1)
    x = (32, 192, 28, 28)
    assert _us("Conv", x, x, (192, 48, 3, 3), group=4) == pytest.approx(55.5, rel=0.15)


def test_the_depth_of_a_product_counts() -> None:
    y = (6304, 768)
    deep = _us("MatMul", y, (6304, 3072), (3072, 768))
    assert deep == pytest.approx(_us("Gemm", y, (6304, 3072), (768, 3072), transB=1))
    problem = GemmProblem(6304, 768, 3072, DType.F16, DType.F16, ())
    assert deep == pytest.approx(problem.onnxruntime_us(SM90))
    assert _us("MatMul", (32, 197, 768), (32, 197, 3072), (3072, 768)) == pytest.approx(deep)
    assert _us("MatMul", (5, 8), (5, 16), (16, 8)) < 0.2 * deep
    assert _us("MatMul", (5,), (5, 16), (16,)) < 0.2 * deep
    assert _us("MatMul", (), (16,), (16,)) < 0.2 * deep


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_products_of_unknown_sizes_have_a_time(op: str) -> None:
    """As those behind an If whose branches have results of different ranks."""
    for known in ((), (0,), (1,), (0, 1)):
        inputs = [
            gs.Variable(f"x{i}", "float16", (8, 8, 3) if i in known else None) for i in range(2)
        ]
        node = Node(op, "node", {}, inputs, [gs.Variable("y", "float16")])
        assert node_us(node, SM90, AS_IS) > 0


def test_sizes_are_computed_on_the_cpu() -> None:
    """ONNX Runtime runs what is computed from shapes alone there: a model of opset 11 whose eight
    Reshapes read such targets took 97.5 us of the device where 147.7 were planned (H200)."""
    x = gs.Variable("x", "float16", (8, 256, 512))
    found = list[gs.Node]()

    def node(op: str, *inputs: gs.Tensor, shape: tuple[int, ...] = (3,)) -> gs.Variable:
        y = gs.Variable(f"{op}{len(found)}", "int64", shape)
        found.append(Node(op, y.name, {}, list(inputs), [y]))
        return y

    two = gs.Constant("two", np.array([2, 2, 2]))
    doubled = node("Mul", node("Shape", x), two)
    node("Where", node("Equal", doubled, two), two, node("Add", doubled, doubled))
    assert [node_us(one, SM90, AS_IS) for one in found] == [0.0] * 5
    # the device runs what reads data, and what is larger than a list of sizes
    data = gs.Variable("data", "int64", (3,))
    on_the_device = [
        node("Add", doubled, data),
        node("Add", doubled, node("Add", data, two)),
        node("Expand", two, doubled, shape=(2, 2, 48)),
        node("Gather", gs.Constant("table", np.zeros((100, 3), np.int64)), doubled),
    ]
    branches = Node("If", "branches", {"then_branch": gs.Graph()}, [doubled], [doubled.copy()])
    assert node_us(branches, SM90, AS_IS) >= SM90.launch_us
    for y in on_the_device:
        assert node_us(y.inputs[0], SM90, AS_IS) >= SM90.launch_us
