from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper

from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.branches import run, unmerged
from onnxbolt.graph.importer import import_model
from tests.canonicalize.compare import (
    applied,
    check_same_answers,
    model,
    operators,
    random,
    unchanged,
)
from tests.canonicalize.test_batchnorm import parameters
from tests.zoo.materialize import random_inputs

Node = tuple[Any, ...]  # as compare.model takes it
C = 8
NORM = ("BatchNormalization", "x g e m v", "n", {"epsilon": 0.01})


def conv(
    out: str,
    *kernel: int,
    pads: int | Sequence[int] = 0,
    stride: int = 1,
    group: int = 1,
    dilation: int = 1,
    x: str = "x",
) -> Node:
    """A Conv with every attribute written out; its weight and bias are named after its output."""
    rank = len(kernel)
    every = [pads] * 2 * rank if isinstance(pads, int) else list(pads)
    return (
        "Conv",
        f"{x} w{out} b{out}",
        out,
        {
            "kernel_shape": list(kernel),
            "strides": [stride] * rank,
            "group": group,
            "dilations": [dilation] * rank,
            "pads": every,
        },
    )


def network(
    *nodes: Node,
    shape: Sequence[int | str] = (2, C, 9, 10),
    outputs: Sequence[str] = ("y",),
    dtype: int = TensorProto.FLOAT,
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """These nodes on x, with random parameters for Convs (C to C channels) and
    BatchNormalization unless given."""
    read = {name for node in nodes for name in node[1].split()}
    drawn = {name: values for name, values in parameters(C).items() if name in read}
    for seed, (op, _, out, *attributes) in enumerate(nodes):
        if op == "Conv":
            drawn[f"w{out}"] = random(
                C, C // attributes[0]["group"], *attributes[0]["kernel_shape"], seed=seed
            )
            drawn[f"b{out}"] = random(C, seed=10 + seed)
    image = [f"size{axis}" for axis in range(len(shape) - 2)]
    return model(
        nodes,
        {"x": shape},
        dict.fromkeys(outputs, ("batch", C, *image)),
        drawn | constants,
        dtype=dtype,
    )


def merged(source: onnx.ModelProto) -> gs.Graph:
    """One Conv is what must be left; the answers are compared."""
    graph = applied(source, run, 1)
    assert operators(graph) == ["Conv"]
    assert graph.nodes[0].outputs[0].name == "y"
    assert unmerged(graph) == []
    return graph


def kept(source: onnx.ModelProto, reason: str) -> None:
    unchanged(source, run)
    (line,) = unmerged(import_model(source))
    assert reason in line


@pytest.mark.parametrize("order", list(itertools.permutations("abn")), ids="".join)
def test_three_branches_in_any_order(order: tuple[str, str, str]) -> None:
    first, second, third = order
    graph = merged(
        network(
            conv("a", 3, 3, pads=1),
            conv("b", 1, 1),
            NORM,
            ("Add", f"{first} {second}", "s"),
            ("Add", f"{third} s", "y"),
        )
    )
    assert graph.nodes[0].inputs[1].shape == (C, C, 3, 3)
    assert sorted(graph.nodes[0].provenance) == ["node_a", "node_b", "node_n", "node_s", "node_y"]


def test_many_branches_in_one_sum() -> None:
    branches = [conv(name, 3, 3, pads=1, group=C) for name in "abc"]
    graph = merged(network(*branches, conv("d", 1, 1, group=C), NORM, ("Sum", "d a n b c", "y")))
    assert graph.nodes[0].inputs[1].shape == (C, 1, 3, 3)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (conv("a", 3, 3, pads=1, stride=2), conv("b", 1, 1, stride=2)),
        (conv("a", 5, 5, pads=2), conv("b", 3, 3, pads=1)),
        (conv("a", 5, 5, pads=2), conv("b", 3, 3, pads=2, dilation=2)),
        (conv("a", 5, 5, pads=4, dilation=2), conv("b", 3, 3, pads=4, dilation=4)),
        (conv("a", 3, 3, pads=2, dilation=2), conv("b", 1, 1)),
        (conv("a", 3, 5, pads=(1, 2, 1, 2)), conv("b", 3, 1, pads=(1, 0, 1, 0))),
        (conv("a", 2, 2, pads=(0, 0, 1, 1)), conv("b", 1, 1)),
        (conv("a", 2, 2, pads=(1, 1, 0, 0)), conv("b", 1, 1)),
        (conv("a", 3, 3, pads=1), conv("b", 3, 3, pads=1, group=2)),
        (conv("a", 3, 3, pads=1, group=2), conv("b", 1, 1, group=4)),
        (conv("a", 3, 3, pads=1, group=2), conv("b", 1, 1, group=C)),
        (conv("a", 1, 1), conv("b", 1, 1)),
    ],
)
def test_windows_and_groups(wide: Node, narrow: Node) -> None:
    graph = merged(network(narrow, wide, ("Add", "b a", "y")))
    assert graph.nodes[0].attrs == wide[3]


@pytest.mark.parametrize("group", [1, 4, C])
def test_branches_of_one_and_three_dimensions(group: int) -> None:
    merged(
        network(
            conv("a", 3, pads=1, group=group),
            conv("b", 1, group=group),
            ("Add", "a b", "y"),
            shape=(2, C, 9),
        )
    )
    branches = conv("a", 3, 3, 3, pads=1, group=group), conv("b", 1, 1, 1, group=group), NORM
    merged(network(*branches, ("Sum", "a n b", "y"), shape=(2, C, 5, 6, 7)))


def test_more_input_than_output_channels() -> None:
    source = network(
        conv("a", 3, 3, pads=1, group=2),
        conv("b", 1, 1, group=4),
        ("Add", "a b", "y"),
        shape=(2, 3 * C, 5, 5),
        wa=random(C, 3 * C // 2, 3, 3),
        wb=random(C, 3 * C // 4, 1, 1),
    )
    merged(source)


def test_sizes_that_are_the_same_by_chance() -> None:
    """TensorFlow's SAME pads an even image at its end alone: 3x3 and 1x1 agree only where the
    size is known."""
    branches = conv("a", 3, 3, pads=(0, 0, 1, 1), stride=2), conv("b", 1, 1, stride=2)
    merged(network(*branches, ("Add", "a b", "y"), shape=("n", C, 8, 6)))
    kept(network(*branches, ("Add", "a b", "y"), shape=("n", C, "h", 6)), "size")


def test_an_identity_branch_beside_two_convolutions() -> None:
    merged(
        network(conv("a", 3, 3, pads=1), conv("b", 1, 1), ("Add", "a x", "s"), ("Add", "s b", "y"))
    )


def test_a_residual_stays() -> None:
    source = network(conv("a", 3, 3, pads=1), ("Add", "a x", "y"))
    unchanged(source, run)
    assert unmerged(import_model(source)) == []


def test_x_that_is_only_broadcast_is_no_identity() -> None:
    weights: dict[str, Any] = {"wa": random(C, 1, 3, 3), "wb": random(C, 1, 1, 1)}
    adds = ("Add", "a x", "s"), ("Add", "s b", "y")
    graph = applied(
        network(conv("a", 3, 3, pads=1), conv("b", 1, 1), *adds, shape=(2, 1, 6, 7), **weights),
        run,
        1,
    )
    assert operators(graph) == ["Conv", "Add"]


@pytest.mark.parametrize(
    "order", [("a", "h", "b", "k"), ("h", "k", "b", "a"), ("a", "b", "h", "k")]
)
def test_other_addends_stay(order: tuple[str, str, str, str]) -> None:
    one, two, three, four = order
    adds = [("Add", f"{one} {two}", "s"), ("Add", f"s {three}", "t"), ("Add", f"{four} t", "y")]
    source = network(
        conv("a", 3, 3, pads=1), ("Relu", "x", "h"), ("Abs", "x", "k"), conv("b", 1, 1), *adds
    )
    graph = applied(source, run, 1)
    assert sorted(operators(graph)) == ["Abs", "Add", "Add", "Conv", "Relu"]
    assert {name for node in graph.nodes for name in node.provenance} == {
        f"node_{name}" for name in "ahkbsty"
    }


def test_two_inputs_are_two_convolutions() -> None:
    on_x, on_h = (
        (conv("a", 3, 3, pads=1), conv("b", 1, 1)),
        (
            conv("c", 3, 3, pads=1, x="h"),
            conv("d", 1, 1, x="h"),
        ),
    )
    source = network(("Relu", "x", "h"), *on_x, *on_h, ("Sum", "a c b d", "y"))
    graph = import_model(source)
    canonicalize(graph)
    assert sorted(operators(graph)) == ["Add", "Conv", "Conv", "Relu"]
    check_same_answers(source, graph)


def test_what_is_wider_in_one_way_alone_stays() -> None:
    kept(
        network(
            conv("a", 1, 7, pads=(0, 3, 0, 3)),
            conv("b", 7, 1, pads=(3, 0, 3, 0)),
            ("Add", "a b", "y"),
        ),
        "window",
    )
    kept(
        network(conv("a", 1, 1), conv("b", 1, 3, pads=(0, 1, 0, 1), group=C), ("Add", "a b", "y")),
        "window",
    )
    kept(
        network(conv("a", 1, 1), conv("b", 5, 5, pads=2, group=C), ("Add", "a b", "y")),
        "groups do not fit: 1 and 8",
    )
    kept(
        network(conv("a", 3, 3, pads=1, group=4), conv("b", 1, 1, group=2), ("Add", "a b", "y")),
        "groups do not fit: 2 and 4",
    )
    kept(
        network(conv("a", 5, 5, pads=2), conv("b", 3, 3, pads=3, dilation=3), ("Add", "a b", "y")),
        "window",
    )


def test_the_widest_does_not_keep_others_apart() -> None:
    branches = (
        conv("a", 1, 1),
        conv("b", 1, 3, pads=(0, 1, 0, 1), group=C),
        conv("c", 1, 3, pads=(0, 1, 0, 1), group=C),
        NORM,
    )
    source = network(*branches, ("Sum", "a b c n", "y"))
    graph = import_model(source)
    canonicalize(graph)
    assert operators(graph).count("Conv") == 2
    assert "BatchNormalization" not in operators(graph)
    check_same_answers(source, graph)


def test_what_is_needed_elsewhere_stays() -> None:
    branches = conv("a", 3, 3, pads=1), conv("b", 1, 1), ("Add", "a b", "y")
    kept(
        network(*branches, outputs=("y", "b")),
        "node_b is not merged with the parallel convolution, because its result is a graph output",
    )
    kept(network(*branches, ("Relu", "b", "z"), outputs=("y", "z")), "has other consumers")
    kept(network(*branches, outputs=("y", "a")), "node_a is not merged")
    kept(
        network(conv("a", 3, 3, pads=1), NORM, ("Add", "a n", "y"), outputs=("y", "n")),
        "node_n is not merged",
    )
    inner = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["o"])],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, None)],
    )
    captured = ("If", "flag", "z", {"then_branch": inner, "else_branch": inner})
    unchanged(network(*branches, captured, outputs=("y", "z"), flag=np.array(True)), run)


def test_a_partial_sum_that_is_an_output_ends_the_merge() -> None:
    adds = ("Add", "a b", "s"), ("Add", "s n", "y")
    graph = applied(
        network(conv("a", 3, 3, pads=1), conv("b", 1, 1), NORM, *adds, outputs=("y", "s")), run, 1
    )
    assert sorted(operators(graph)) == ["Add", "BatchNormalization", "Conv"]
    assert len(unmerged(graph)) == 1


def test_strides_that_differ_stay() -> None:
    strided = conv("a", 3, 3, pads=(1, 1, 0, 0), stride=9), conv("b", 1, 1, stride=8)
    kept(network(*strided, ("Add", "a b", "y"), shape=(2, C, 9, 9)), "strides")


def test_computed_weights_stay() -> None:
    computed = ("Neg", "w", "wb"), ("Conv", "x wb", "b", conv("b", 1, 1)[3])
    source = model(
        [conv("a", 3, 3, pads=1), *computed, ("Add", "a b", "y")],
        {"x": (2, C, 9, 9)},
        {"y": (2, C, 9, 9)},
        {"wa": random(C, C, 3, 3), "ba": random(C), "w": random(C, C, 1, 1)},
    )
    unchanged(source, run)


def test_normalization_in_training_stays() -> None:
    training = ("BatchNormalization", "x g e m v", "n m2 v2", {"training_mode": 1})
    unchanged(network(conv("a", 3, 3, pads=1), training, ("Add", "a n", "y")), run)


def test_fp16_is_added_in_double_precision() -> None:
    source = network(
        conv("a", 3, 3, pads=1), conv("b", 1, 1), ("Add", "a b", "y"), dtype=TensorProto.FLOAT16
    )
    weight = merged(source).nodes[0].inputs[1].values
    (a, b), both = (
        (
            random(C, C, size, size, seed=seed).astype(np.float16)
            for seed, size in enumerate((3, 1))
        ),
        np.float64,
    )
    expected = a.astype(both)
    expected[:, :, 1:2, 1:2] += b.astype(both)
    assert weight.dtype == np.float16
    assert (weight == expected.astype(np.float16)).all()


def test_what_does_not_fit_fp16_stays() -> None:
    large = np.full((C, C, 1, 1), 50000.0)
    kept_pair = conv("a", 1, 1), conv("b", 1, 1), ("Add", "a b", "y")
    source = network(*kept_pair, dtype=TensorProto.FLOAT16, wa=large, wb=large)
    unchanged(source, run)
    assert all("exceeds the range of float16" in line for line in unmerged(import_model(source)))


def test_branches_that_still_have_their_normalization() -> None:
    """As PyTorch's training mode exports MobileOne's block."""
    norm = {"epsilon": 0.01}
    nodes = [
        conv("a", 3, 3, pads=1, group=C),
        ("BatchNormalization", "a g e m v", "an", norm),
        conv("b", 1, 1, group=C),
        ("BatchNormalization", "b g e m v", "bn", norm),
        NORM,
        ("Add", "n an", "s"),
        ("Add", "s bn", "t"),
        ("Relu", "t", "y"),
    ]
    source = network(*nodes)
    graph = import_model(source)
    canonicalize(graph)
    assert operators(graph) == ["Conv", "Relu"]
    check_same_answers(source, graph)


@pytest.mark.parametrize("exporter", ["dynamo", "ts"])
def test_the_zoo_s_training_form_becomes_a_chain(
    exporter: str, zoo: Callable[[str], onnx.ModelProto]
) -> None:
    source = zoo(f"timm_repvgg_a0.{exporter}")
    graph = import_model(source)
    canonicalize(graph)
    assert operators(graph)[: 2 * 22] == ["Conv", "Relu"] * 22
    assert {tuple(node.attrs["kernel_shape"]) for node in graph.nodes if node.op == "Conv"} == {
        (3, 3)
    }
    # only the classifier is left
    assert not {"Conv", "BatchNormalization", "Add"} & set(operators(graph)[2 * 22 : -2])
    check_same_answers(source, graph, random_inputs(source, batch=2))
