"""Models as they might come out of an archive, whose data, shapes or depth are wrong. Each is a
command line without the output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

INT64 = 2**63 - 1


def small(
    nodes: list[NodeProto],
    initializers: Sequence[TensorProto] = (),
    shape: tuple[int | str, ...] = (4, 8),
    functions: Sequence[FunctionProto] = (),
) -> ModelProto:
    """A model from x to y."""
    x, y = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], initializers),
        opset_imports=opsets,
        ir_version=8,
        functions=functions,
    )


def with_external(location: str, dims: tuple[int, ...] = (8, 8), **entries: Any) -> ModelProto:
    """A product by a weight whose data are elsewhere."""
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    return small([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])


def external_models(directory: Path) -> Iterator[tuple[str, ModelProto]]:
    """Data outside of the model's directory, or of sizes that are wrong; small tensors, and
    large ones, which stay in their files."""
    outside = directory.parent / f"{directory.name}.secret"
    outside.write_bytes(bytes(2**22))
    inside = directory / "data"
    inside.write_bytes(bytes(2**22))
    for name, target in {
        "link": outside,
        "loop": directory / "loop",
        "dangling": directory / "nowhere",
        "zero": Path("/dev/zero"),
    }.items():
        (directory / name).symlink_to(target)
    (directory / "folder").mkdir()
    (directory / "folder" / "up").symlink_to(directory.parent)
    os.mkfifo(directory / "pipe")
    locations = [
        str(outside),
        f"../{outside.name}",
        f"folder/../../{outside.name}",
        f"folder/up/{outside.name}",
        "link",
        "loop",
        "dangling",
        "zero",
        "pipe",
        "folder",
        "",
        ".",
        "/etc/passwd",
        "/dev/zero",
        "data\0x",
        "nowhere",
        "~/data",
        "file:///etc/passwd",
        "x" * 5000,
    ]
    for dims in ((8, 8), (1024, 1024)):
        for location in locations:
            yield f"data in {location[:30]!r} {dims}", with_external(location, dims)
        for entries in (
            {"offset": -1},
            {"offset": 2**62},
            {"offset": "x"},
            {"length": 2**62},
            {"offset": 2**22 - 8},
            {"length": "1e3"},
            {"length": 10},
            {"offset": INT64, "length": INT64},
        ):
            yield f"data with {entries} {dims}", with_external("data", dims, **entries)
    shapes: tuple[tuple[int, ...], ...]
    shapes = ((2**40, 2**40), (INT64, INT64), (2**33,), (-1, 8), (2**32, 2**32, 0))
    for shape in shapes:
        yield f"data of shape {shape}", with_external("data", shape)


def enormous_models() -> Iterator[tuple[str, ModelProto]]:
    """Shapes whose product overflows, or asks for terabytes."""
    product = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    for dims in ((2**40, 8), (8, 2**40), (INT64, INT64), (-8, 8), (2**32, 2**32)):
        yield (
            f"a weight of {dims} without data",
            small(product, [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)]),
        )
        yield (
            f"a weight of {dims} with 8 bytes",
            small(
                product,
                [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(8))],
            ),
        )
    sizes = numpy_helper.from_array(np.array([2**20, 2**20, 2**10], np.int64), "s")
    for op in ("ConstantOfShape", "Expand", "Tile", "Reshape"):
        inputs = ["s"] if op == "ConstantOfShape" else ["c", "s"]
        one = numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "c")
        nodes = [
            helper.make_node(op, inputs, ["big"]),
            helper.make_node("ReduceSum", ["big"], ["sum"]),
            helper.make_node("Mul", ["x", "sum"], ["y"]),
        ]
        yield f"{op} of terabytes", small(nodes, [sizes, one])
    ends = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("a", 0), ("b", 1e13), ("d", 1))
    ]
    nodes = [
        helper.make_node("Range", ["a", "b", "d"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"]),
        helper.make_node("Mul", ["x", "sum"], ["y"]),
    ]
    yield "Range of terabytes", small(nodes, ends)
    pads = numpy_helper.from_array(np.array([0, 0, 2**40, 2**40], np.int64), "p")
    yield "Pad of terabytes", small([helper.make_node("Pad", ["x", "p"], ["y"])], [pads])
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    for shape in ((2**33, 8), (2**62, 2**62, 8), (INT64, 8)):
        yield f"an input of {shape}", small(product, [weight], shape)
    kernel = numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w")
    yield (
        "a convolution of 2**60 pixels",
        small([helper.make_node("Conv", ["x", "w"], ["y"])], [kernel], (1, 8, 2**30, 2**30)),
    )
    wide = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2**40] * 2, pads=[2**40] * 4)
    yield "dilations of 2**40", small([wide], [kernel], (1, 8, 8, 8))


def deep_models() -> Iterator[tuple[str, ModelProto]]:
    """Nested functions and subgraphs."""
    for depth in (50, 2000):
        functions = [
            helper.make_function(
                "local",
                f"f{i}",
                ["x"],
                ["y"],
                [
                    (
                        helper.make_node(f"f{i + 1}", ["x"], ["y"], domain="local")
                        if i < depth
                        else helper.make_node("Relu", ["x"], ["y"])
                    )
                ],
                [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
            )
            for i in range(depth + 1)
        ]
        yield (
            f"{depth} nested functions",
            small([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions),
        )
    doubling = [
        helper.make_function(
            "local",
            f"f{i}",
            ["x"],
            ["y"],
            [
                (
                    helper.make_node(f"f{i + 1}", ["x"], ["t"], domain="local")
                    if i < 40
                    else helper.make_node("Relu", ["x"], ["t"])
                ),
                (
                    helper.make_node(f"f{i + 1}", ["t"], ["y"], domain="local")
                    if i < 40
                    else helper.make_node("Relu", ["t"], ["y"])
                ),
            ],
            [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        )
        for i in range(41)
    ]
    yield (
        "2**41 nodes by functions",
        small([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=doubling),
    )
    node = helper.make_node("Relu", ["x"], ["y"])
    for _ in range(30):
        graph = helper.make_graph(
            [node], "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        )
        node = _branch(graph)
    condition = numpy_helper.from_array(np.array(True), "c")
    yield "30 nested branches", small([node], [condition])


def _branch(graph: onnx.GraphProto) -> NodeProto:
    """An If with the graph in one branch, and a Relu in the other: both would double the size at
    each level."""
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "other", [], list(graph.output)
    )
    node = helper.make_node("If", ["c"], ["y"])
    for name, branch in (("then_branch", graph), ("else_branch", other)):
        node.attribute.add(name=name, type=AttributeProto.GRAPH).g.CopyFrom(branch)
    return node
