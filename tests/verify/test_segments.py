"""Cutting the optimized model: every changed node is judged, and tensors are fed as they are
stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from onnxbolt.cli import main
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.originals import Originals
from onnxbolt.verify.result import VerifyResult
from onnxbolt.verify.segments import other_constants, plan
from onnxbolt.verify.session import CPU, Runner
from onnxbolt.verify.stored import Known, Piece, known
from tests.support import Net, feeds_of, fused


def branches() -> ModelProto:
    """Layouts, a Reshape, Casts, pooling, a slice of a Concat, and operators that stay."""
    net = Net({"x": (2, 3, 16, 16)})
    a = net.node("Relu", net.conv("x", 3, 16, 3, pads=[1, 1, 1, 1]))
    joined = net.node(
        "Concat",
        net.node("Relu", net.conv(a, 16, 16)),
        net.node("Sigmoid", net.conv(a, 16, 24)),
        axis=1,
    )
    b = net.node("MaxPool", net.conv(joined, 40, 16), kernel_shape=[2, 2], strides=[2, 2])
    c = net.node("Resize", b, "", net.const([1, 1, 2, 2]), mode="nearest")
    d = net.node("Softmax", net.node("Reshape", c, net.const([2, 16, 256], np.int64)))
    return net.model(net.node("Cos", d), net.node("GlobalAveragePool", joined))


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_every_changed_node_lies_in_a_segment_that_is_compared(precision: str) -> None:
    model = branches()
    optimized = fused(model, precision)
    found = plan(model, optimized, other_constants(model, optimized))
    before = {node.SerializeToString() for node in model.graph.node}
    changed = {
        node.output[0] for node in optimized.graph.node if node.SerializeToString() not in before
    }
    judged = {
        node.output[0] for segment in found.segments for node in segment.nodes if segment.writes
    }
    assert changed
    assert changed <= judged
    assert not found.orphans
    rows = verify(model, optimized, providers=[CPU]).at("segment")
    assert {row.name for row in rows} == {
        tensor.own.name for segment in found.segments for tensor in segment.writes
    }
    assert all(row.passed for row in rows)


def test_what_is_left_as_it_was_is_not_judged_again() -> None:
    model = branches()
    assert verify(model, model, providers=[CPU]).at("segment") == ()
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.initializer[0].raw_data = (
        onnx.numpy_helper.to_array(other.graph.initializer[0]) * 1.5
    ).tobytes()
    assert [row.passed for row in verify(model, other, providers=[CPU]).at("segment")] == [False]


def test_originals_are_brought_into_stored_layouts() -> None:
    values = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    stored = Piece("x", True, (2, -1, 0, 1)).stored(values)
    assert stored.shape == (2, 4, 5, 4)
    assert np.array_equal(stored[..., 0], values[:, 2])
    assert not stored[..., 1].any()
    assert Piece("x", True).stored(values[:, :, 0, 0]).shape == (2, 1, 1, 3)
    with pytest.raises(ValueError, match="does not name each of 3 channels"):
        Piece("x", True, (0, 1, 1)).stored(values)
    with pytest.raises(ValueError, match="NHWC does not fit"):
        Piece("x", True).stored(values[0, 0, 0])


def test_parts_of_a_joined_tensor() -> None:
    model = branches()
    optimized = fused(model, "fp16")
    found, orphans = known(
        list(optimized.graph.node),
        {"x", *(name for node in model.graph.node for name in node.output)},
    )
    parts = [node for node in optimized.graph.node if node.op_type.endswith(("_part", "_into"))]
    assert [node.op_type.rpartition("_")[2] for node in parts] == ["part", "into"]
    assert [found[node.output[0]] for node in parts] == [
        Known(parts[0].output[0], Piece("relu3", True, None, 0, -24), (), parts[0].name),
        Known(
            parts[1].output[0],
            Piece("sigmoid5", True, None, 16, None),
            (Piece("relu3", True, None, 0, -24),),
            parts[1].name,
        ),
    ]
    assert not orphans


def test_originals_are_computed_in_pieces_and_given_back() -> None:
    model = branches()
    feeds = feeds_of(model)
    names = [node.output[0] for node in model.graph.node]
    originals = Originals(Runner(model, CPU), feeds, dict.fromkeys(names, 1))
    expected = Runner(model, CPU).run(feeds, names)
    for name in names:
        np.testing.assert_allclose(originals.take(name), expected[name], rtol=1e-6, atol=1e-6)
    assert originals._values == {}


def test_a_piece_of_the_original_has_its_constants() -> None:
    """Unsqueezed by axes that are an input, a scalar seems to have no size, and ONNX Runtime
    refuses the Resize behind it."""
    net = Net({"x": (1, 1, 4, 4)})
    axes = net.node("Constant", value_ints=[0])
    ones = net.node("Constant", value_ints=[1, 1])
    scalar, width = net.const(8, np.int64), net.node("ReduceMax", "x", keepdims=0)
    relus = [net.node("Relu", "x") for _ in range(8)]  # a piece is full
    for _ in range(8):
        scalar = net.node("Add", scalar, net.node("Cast", width, to=onnx.TensorProto.INT64))
    size = net.node("Unsqueeze", scalar, axes)
    sizes = net.node("Concat", ones, size, size, axis=0)
    model = net.model(net.node("Resize", "x", "", "", sizes), *relus)
    feeds = {"x": np.zeros((1, 1, 4, 4), np.float32)}
    names = [node.output[0] for node in model.graph.node if node.op_type != "Constant"]
    originals = Originals(Runner(model, CPU), feeds, dict.fromkeys(names, 1))
    assert [originals.take(name).shape for name in names][-1] == (1, 1, 8, 8)


def test_a_tensor_that_a_segment_reads_and_computes() -> None:
    """Split and Concat have no original and join all that is between them to one segment, which
    reads `a` and makes it, too."""
    net = Net({"x": (4, 8)})
    a = net.node("Abs", "x")
    negative = net.node("Neg", "x")
    model = net.model(net.node("Add", a, negative), a)
    other = ModelProto()
    other.CopyFrom(model)
    nodes = [
        helper.make_node("Split", ["x"], ["l", "r"], axis=1),
        helper.make_node("Concat", ["l", "r"], ["copied"], axis=1),
    ]
    for node in model.graph.node:
        reads, writes = (
            [{"x": "copied", negative: "unknown"}.get(name, name) for name in side]
            for side in (node.input, node.output)
        )
        nodes.append(helper.make_node(node.op_type, reads, writes))
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    (segment,) = plan(model, other, set()).segments
    assert {*segment.reads} == {"x", f"{a}//cut"}
    assert verify(model, other, providers=[CPU]).passed
    nodes[2].op_type = "Relu"
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    assert [
        row.name for row in verify(model, other, providers=[CPU]).failures if row.level == "segment"
    ] == [a]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_sequences_and_control_flow_stay_whole(precision: str) -> None:
    net = Net({"x": (4, 8)})
    rows = net.linear("x", 8, 16)
    pieces = net.node("SplitToSequence", rows, axis=1)
    first = net.node("SequenceAt", pieces, net.const(0, np.int64))
    report = optimize(
        net.model(net.node("Relu", first)), precision=precision, fuse="all", library=False
    )
    assert report.passed


def verified(model: ModelProto, precision: str, path: Path) -> VerifyResult:
    """The result of verification of the optimized model, on the CPU."""
    optimize(
        model, path, precision=precision, fuse="all", archs=("sm_80",), library=False, verify=False
    )
    return verify(model, onnx.load(path), providers=[CPU])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_constants_beyond_the_range_of_16_bits(precision: str, tmp_path: Path) -> None:
    """Float32's lowest number becomes the lowest of 16 bits, which is further away than a
    rounding."""
    net = Net({"x": (4, 8)})
    mask = net.const(np.tri(8, dtype=bool)[:4], bool)
    y = net.node("Where", mask, net.linear("x", 8, 8), net.const(np.finfo(np.float32).min))
    result = verified(net.model(net.node("Softmax", y)), precision, tmp_path / "out.onnx")
    assert {row.name: row.passed for row in result.at("segment")}[y]
    assert result.passed


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sparse_initializers_are_operands(precision: str, tmp_path: Path) -> None:
    net = Net({"x": (2, 4)})
    y = net.node("MatMul", net.linear("x", 4, 4), "sparse")
    model = net.model(y)
    values = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "sparse")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            values, onnx.numpy_helper.from_array(np.array([1, 7], np.int64)), [4, 4]
        )
    )
    result = verified(model, precision, tmp_path / "out.onnx")
    assert {row.name: row.passed for row in result.at("segment")}[y]
    assert not any("no bound is known" in note for note in result.notes)


def faint(
    *nodes: onnx.NodeProto, opset: int = 17, sparse: Sequence[float] = (), **constants: float
) -> ModelProto:
    """A model whose output is 1 + 1e-5 of what `nodes` make of x, as s: at the output their
    faults are far below every limit."""
    ends = [
        helper.make_node("Mul", ["s", "small"], ["t"]),
        helper.make_node("Add", ["t", "one"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 3, 4]), ("y", None))
    ]
    scalars = {"small": 1e-5, "one": 1.0, **constants}
    graph = helper.make_graph(
        [*nodes, *ends],
        "faint",
        values[:1],
        values[1:],
        [
            onnx.numpy_helper.from_array(np.array(value, np.float32), name)
            for name, value in scalars.items()
        ],
    )
    if sparse:
        data = onnx.numpy_helper.from_array(np.array(sparse, np.float32), "w")
        places = onnx.numpy_helper.from_array(np.array([0, 5], np.int64), "w_places")
        graph.sparse_initializer.append(helper.make_sparse_tensor(data, places, [4, 4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def judged(original: ModelProto, other: ModelProto) -> tuple[list[str], bool]:
    """Tensors whose segments failed, and whether the model's output passed."""
    result = verify(original, other, providers=[CPU])
    return [row.name for row in result.at("segment") if row.failed], all(
        row.passed for row in result.at("model")
    )


def test_an_operator_that_means_another_thing_in_another_opset_has_changed() -> None:
    """Softmax is over all axes from the second on in opset 11, over the last one in opset 13;
    Abs is what it was."""
    nodes = helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["s"])
    models = [faint(*nodes, opset=opset) for opset in (11, 13)]
    assert judged(*models) == (["s"], True)
    models = [
        faint(nodes[0], helper.make_node("Cos", ["a"], ["s"]), opset=opset) for opset in (14, 17)
    ]
    assert verify(*models, providers=[CPU]).at("segment") == ()


def test_a_sparse_initializer_that_changed() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"])]
    assert judged(faint(*nodes, sparse=(1, 2)), faint(*nodes, sparse=(1, 2.1))) == (["s"], True)


@pytest.mark.parametrize(("right", "wrong"), [(0.5, 0.51), (2.0, 3.0), (2.5, 2.51), (-1.5, -1.51)])
def test_a_wrong_exponent_fails(right: float, wrong: float) -> None:
    """Each element of x^p has a limit, whatever p is, and right models are within it."""

    def model(constant: float, name: str) -> ModelProto:
        shifted = (
            helper.make_node("Abs", ["x"], ["a"]),
            helper.make_node("Add", ["a", "one"], ["b"]),
        )
        constants: dict[str, Any] = {name: constant}
        return faint(*shifted, helper.make_node("Pow", ["b", name], ["s"]), **constants)

    assert judged(model(right, "p"), model(wrong, "q")) == (["s"], True)
    rows = verify(model(right, "p"), model(right, "q"), providers=[CPU]).at("segment")
    assert [row.passed for row in rows] == [True]


def test_a_node_that_writes_a_name_of_the_original_is_judged_by_that_name() -> None:
    """A NhwcToNchw that says it writes another tensor, and does: what follows reads the wrong
    one under the right name."""
    net = Net({"x": (1, 16, 16, 16)})
    first = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    second = net.node("Relu", net.conv(first, 16, 16, 3, pads=[1, 1, 1, 1]))
    model = net.model(
        net.node("Add", net.node("Mul", net.node("Cos", second), net.const(1e-5)), net.const(1.0))
    )
    wrong = fused(model, "keep")
    back = next(node for node in wrong.graph.node if second in node.output)
    stored = next(node.output[0] for node in wrong.graph.node if f"{first}__nhwc" in node.output)
    back.input[0] = stored
    next(a for a in back.attribute if a.name == "tensor").s = first.encode()
    assert judged(model, wrong) == ([second], True)


def padded(around: int) -> ModelProto:
    """Convolutions of 13 channels, which are stored as 16. With a sum around the second and third
    one (`around`: the size of the last filter; 0: no sum) segments read each other's results: one
    tensor in it is no tensor of the original.
    """
    net = Net({"x": (1, 3, 16, 16)})
    a = net.node("Round", net.node("Relu", net.conv("x", 3, 13, 3, pads=[1, 1, 1, 1])))
    first = net.node("Relu", net.conv(a, 13, 13, 3, pads=[1, 1, 1, 1]))
    end = net.node("Relu", net.conv(first, 13, 13, 3, pads=[1, 1, 1, 1]))
    if around:
        end = net.node(
            "Relu", net.node("Add", net.conv(end, 13, 13, around, pads=[around // 2] * 4), a)
        )
    return net.model(
        net.node("Add", net.node("Mul", net.node("Cos", end), net.const(1e-5)), net.const(1.0))
    )


@pytest.mark.parametrize(
    ("precision", "around", "failing", "order"),
    [
        ("fp16", 0, "relu6", 1),
        ("fp16", 1, "relu9", 0),
        ("fp16", 3, "relu6", -1),
        ("keep", 0, "relu6", 1),
    ],
)
def test_padding_and_what_reads_it(precision: str, around: int, failing: str, order: int) -> None:
    """A bias in padded channels is no fault as long as the weights behind them are zero; together
    they are one.

    `order`: of the segment that makes the padding and the one that reads it; -1: the reader comes
    first.
    """
    model = padded(around)
    wrong = fused(model, precision)
    convolutions = [node for node in wrong.graph.node if node.op_type.startswith("FusedConv")]
    initializers = {tensor.name: tensor for tensor in wrong.graph.initializer}

    def change(name: str, channels: Any, value: float) -> None:
        values = onnx.numpy_helper.to_array(initializers[name]).copy()
        assert not values[channels].any()
        values[channels] = value
        initializers[name].CopyFrom(onnx.numpy_helper.from_array(values, name))

    segments = plan(model, wrong, other_constants(model, wrong)).segments
    (maker,) = (
        i
        for i, segment in enumerate(segments)
        if any(t.own.name == "relu4" for t in segment.writes)
    )
    (reader,) = (
        i
        for i, segment in enumerate(segments)
        if any(t.own.name == "relu4" for t in segment.reads.values())
    )
    assert np.sign(reader - maker) == order
    change(convolutions[1].input[2], (np.s_[13:],), 5)
    assert judged(model, wrong) == ([], True)
    change(convolutions[2].input[1], np.s_[..., 13:], 0.1)
    assert judged(model, wrong) == ([failing], True)


def absorbing(mask: Sequence[float]) -> list[onnx.NodeProto]:
    """(s m + s) - s m, which is 0 where m is 1e9 although it should be s: an operator that
    widens its own limit."""
    m = onnx.numpy_helper.from_array(np.array(mask, np.float32).reshape(-1), "m")
    return [
        helper.make_node("Constant", [], ["m"], value=m),
        helper.make_node("Mul", ["right", "m"], ["far"]),
        helper.make_node("Add", ["far", "right"], ["near"]),
        helper.make_node("Sub", ["near", "far"], ["s"]),
    ]


@pytest.mark.parametrize("mask", [[1e9], [0, 0, 1e9, 0]])
def test_operators_that_widen_their_own_limit_are_not_judged(
    mask: list[float], tmp_path: Path
) -> None:
    original = faint(helper.make_node("Abs", ["x"], ["s"]))
    wrong = faint(helper.make_node("Abs", ["x"], ["right"]), *absorbing(mask))
    result = verify(original, wrong, providers=[CPU])
    assert [(row.level, row.name) for row in result.unjudged] == [("segment", "s")]
    assert "instead of" in result.unjudged[0].unjudged
    assert (
        result.text()
        .splitlines()[-1]
        .startswith("PASSED as a whole; 1 tensor not judged by segment or node (give --inputs): ")
    )
    onnx.save(original, tmp_path / "a.onnx")
    onnx.save(wrong, tmp_path / "b.onnx")
    assert [
        main(["verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), *strict])
        for strict in ([], ["--strict"])
    ] == [0, 3]


def test_a_function_that_widens_its_own_limit_is_not_judged() -> None:
    net = Net({"x": (1, 16, 16, 16)})
    middle = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    model = net.model(
        net.node("Add", net.node("Mul", net.node("Cos", middle), net.const(1e-5)), net.const(1.0))
    )
    wrong = fused(model, "keep")
    (function,) = (f for f in wrong.functions if f.name.startswith("FusedConv"))
    function.node[-1].output[0] = "right"
    function.node.extend(absorbing([1e9] + 15 * [0.0]))
    function.node[-1].output[0] = function.output[0]
    result = verify(model, wrong, providers=[CPU])
    assert not result.judged
    assert {row.level for row in result.unjudged} == {"segment", "node"}
