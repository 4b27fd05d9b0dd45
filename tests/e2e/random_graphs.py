"""Random models: each move reads tensors at random and adds one idea of real networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from onnxbolt.precision import rounded_original
from tests.e2e.growing import BATCH, LARGEST, SIZES, GrowingGraph, UnfitError

_ACTIVATIONS = (
    "Relu",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "Elu",
    "Softplus",
    "Abs",
    "Neg",
    "Selu",
    "Softsign",
    "Identity",
    "Sqrt",
)


def random_model(seed: int) -> ModelProto:
    """The model of a seed; ONNX Runtime runs it on random inputs."""
    graph = GrowingGraph(seed)
    while len(graph.net.nodes) < graph.size:
        graph.move(MOVES)
    model = graph.model()
    return rounded_original(model, "fp16") if graph.draw.random() < 0.15 else model


def _convolution(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    channels, spatial = g.shapes[x][1], len(g.shapes[x]) - 2
    group = (
        g.draw.choice([d for d in range(1, channels + 1) if channels % d == 0])
        if g.draw.random() < 0.15
        else 1
    )
    out = (
        group * g.draw.choice((1, 2, 3))
        if group > 1
        else g.draw.choice((1, 2, *SIZES, *SIZES, 16, 70))
    )
    kernel = [g.draw.choice((1, 2, 3)) for _ in range(spatial)]
    attributes: dict[str, Any] = {
        "group": group,
        "strides": [g.draw.choice((1, 1, 2)) for _ in kernel],
    }
    dilations = [g.draw.choice((1, 1, 2)) for _ in kernel]
    if any(
        d * (k - 1) >= size for d, k, size in zip(dilations, kernel, g.shapes[x][2:], strict=True)
    ):
        raise UnfitError
    if g.draw.random() < 0.15:
        attributes["auto_pad"] = g.draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        attributes |= {
            "pads": [g.draw.randint(0, 2) for _ in range(2 * spatial)],
            "dilations": dilations,
        }
    depth = channels // group * int(np.prod(kernel))
    weight = g.net.normal(out, channels // group, *kernel, scale=depth**-0.5)
    _maybe_activate(
        g,
        g.add(
            "Conv", x, weight, *([g.net.normal(out)] if g.draw.random() < 0.7 else []), **attributes
        ),
    )


def _residual(g: GrowingGraph) -> None:
    x = g.tensor(4)
    channels = g.shapes[x][1]
    y = g.add(
        "Conv",
        x,
        g.net.normal(channels, channels, 3, 3, scale=(9 * channels) ** -0.5),
        pads=[1] * 4,
    )
    if g.draw.random() < 0.5:
        y = _normalized(g, y)
    _maybe_activate(g, g.add("Add", *g.draw.sample((x, y), 2)))


def _normalized(g: GrowingGraph, x: str) -> str:
    channels = g.shapes[x][1]
    return g.add(
        "BatchNormalization",
        x,
        g.net.normal(channels),
        g.net.normal(channels),
        g.net.normal(channels),
        g.net.const(g.net.rng.uniform(0.5, 1.5, channels)),
    )


def _batch_norm(g: GrowingGraph) -> None:
    _normalized(g, g.tensor(3, 4))


def _product(g: GrowingGraph) -> None:
    x = g.tensor()
    k, n = g.shapes[x][-1], g.draw.choice((1, *SIZES, *SIZES, 16, 70))
    weight = g.net.normal(k, n, scale=k**-0.5)
    if len(g.shapes[x]) == 2 and g.draw.random() < 0.5:
        c = (
            [g.net.normal(*g.draw.choice(((n,), (1, n), (), (1,), (BATCH, 1))))]
            if g.draw.random() < 0.7 and not g.symbolic
            else []
        )
        y = g.add(
            "Gemm", x, weight, *c, alpha=g.draw.choice((1.0, 0.5)), beta=g.draw.choice((1.0, 2.0))
        )
    else:
        y = g.add("MatMul", x, weight)
        y = g.add("Add", y, g.net.normal(n)) if g.draw.random() < 0.6 else y
    _maybe_activate(g, y)


def _product_between_reshapes(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    shape, n = g.shapes[x], g.draw.choice((1, 5, 8, 70))
    rows = g.net.node("Reshape", x, g.sizes((-1, shape[-1])))
    y = g.net.node(
        "Gemm", rows, g.net.normal(n, shape[-1], scale=shape[-1] ** -0.5), g.net.normal(n), transB=1
    )
    steps: list[tuple[str, list[tuple[int, ...]]]]
    steps = [("Relu", []), ("Mul", [(n,)]), ("Sub", [()]), ("Clip", [()])]
    for op, others in g.draw.sample(steps, g.draw.randint(0, 2)):
        y = g.net.node(op, y, *(g.net.normal(*other) for other in others))
    back = g.net.node("Reshape", y, g.sizes((-1, *shape[1:-1], n)))
    if BATCH * int(np.prod(shape[1:-1])) * n > LARGEST:
        raise UnfitError
    g.shapes[back] = (*shape[:-1], n)


def _maybe_activate(g: GrowingGraph, x: str) -> None:
    if g.draw.random() < 0.6:
        _activation(g, x)


def _activation(g: GrowingGraph, x: str = "") -> None:
    x = x or g.tensor()
    kind, node = (
        g.draw.choice((*_ACTIVATIONS, "silu", "hard_swish", "gelu", "clip", "square")),
        g.net.node,
    )
    if kind == "silu":
        g.add("Mul", x, g.add("Sigmoid", x))
    elif kind == "hard_swish":
        g.add("Mul", x, g.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    elif kind == "gelu":
        g.shapes[node("Erf", node("Div", x, g.net.const(2**0.5)))] = g.shapes[x]
        inner = g.add("Add", g.net.nodes[-1].output[0], g.net.const(1.0))
        g.add("Mul", g.add("Mul", x, g.net.const(0.5)), inner)
    elif kind == "clip":
        g.add("Clip", x, g.net.const(-0.5), *([g.net.const(6.0)] if g.draw.random() < 0.5 else []))
    elif kind == "square":
        g.add("Tanh", g.add("Mul", x, x))
    elif kind == "Sqrt":
        g.add("Sqrt", g.add("Abs", x))
    else:
        g.add(kind, x)


def _combination(g: GrowingGraph) -> None:
    """Two or three tensors that broadcast, by chance of the same shape."""
    x = g.tensor()
    others = [name for name, shape in g.shapes.items() if len(shape) <= len(g.shapes[x])]
    op = g.draw.choice(("Add", "Add", "Mul", "Sub", "Max", "Sum", "Where"))
    other = g.draw.choice(others)
    if op == "Where":
        g.shapes["mask"] = ()
        g.net.nodes.append(
            helper.make_node("Less", [x, g.net.const(0.3)], [mask := f"mask{len(g.net.nodes)}"])
        )
        y = g.net.node("Where", mask, x, x if g.shapes[other] != g.shapes[x] else other)
        del g.shapes["mask"]
        g.shapes[y] = g.shapes[x]
        return
    g.add(op, *g.draw.sample((x, other), 2), *([g.draw.choice(others)] if op == "Sum" else []))


def _constant(g: GrowingGraph) -> None:
    x = g.tensor()
    shape = g.shapes[x]
    along = tuple(size if axis == 1 else 1 for axis, size in enumerate(shape))
    form = g.draw.choice(((), (1,), shape[-1:], shape[1:], along, along[1:], (1, *shape[1:])))
    values = g.net.rng.standard_normal(form)
    constant = g.net.const(np.where(values < 0, values - 0.3, values + 0.3))
    op = g.draw.choice(("Add", "Mul", "Sub", "Div", "PRelu", "Max"))
    g.add(
        op,
        *(
            (constant, x)
            if op in ("Add", "Mul", "Sub") and g.draw.random() < 0.4
            else (x, constant)
        ),
    )


def _pooling(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    spatial, op = (
        len(g.shapes[x]) - 2,
        g.draw.choice(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")),
    )
    if op.startswith("Global"):
        g.add(op, x)
        return
    size, pad = g.draw.choice(((2, 0), (3, 0), (3, 1)))
    if min(g.shapes[x][2:]) < size:
        raise UnfitError
    extra = {"count_include_pad": g.draw.choice((0, 1))} if op == "AveragePool" else {}
    g.add(
        op,
        x,
        kernel_shape=[size] * spatial,
        strides=[g.draw.choice((1, 2))] * spatial,
        pads=[pad] * 2 * spatial,
        **extra,
    )


def _concatenation(g: GrowingGraph) -> None:
    x = g.tensor()
    axis = g.inner_axis(g.shapes[x])
    others = [
        name
        for name, shape in g.shapes.items()
        if len(shape) == len(g.shapes[x])
        and all(
            a == b for i, (a, b) in enumerate(zip(shape, g.shapes[x], strict=True)) if i != axis
        )
    ]
    parts = [x, *(g.draw.choice(others) for _ in range(g.draw.randint(1, 2)))]
    g.add(
        "Concat",
        *g.draw.sample(parts, len(parts)),
        axis=axis - g.draw.choice((0, len(g.shapes[x]))),
    )


def _selection(g: GrowingGraph) -> None:
    x = g.tensor()
    axis = g.inner_axis(g.shapes[x])
    size, op = g.shapes[x][axis], g.draw.choice(("Slice", "Gather", "Split"))
    if op == "Gather":
        g.add(
            op,
            x,
            g.sizes([g.draw.randrange(-size, size) for _ in range(g.draw.randint(1, 5))]),
            axis=axis,
        )
        return
    begin = g.draw.randrange(size)
    if op == "Slice":
        g.add(
            op,
            x,
            *(
                g.sizes([v])
                for v in (begin, g.draw.randint(begin + 1, size), axis, g.draw.choice((1, 1, 2)))
            ),
        )
    elif begin and g.net.opset < 13:
        g.add(op, x, outputs=2, axis=axis, split=[begin, size - begin])
    elif begin:
        g.add(op, x, g.sizes((begin, size - begin)), outputs=2, axis=axis)


def _transposition(g: GrowingGraph) -> None:
    x = g.tensor()
    order = list(range(1, len(g.shapes[x])))
    g.draw.shuffle(order)
    usual = ([0, 2, 3, 1], [0, 3, 1, 2])
    g.add(
        "Transpose",
        x,
        perm=g.draw.choice(usual) if len(order) == 3 and g.draw.random() < 0.5 else [0, *order],
    )


def _reshaping(g: GrowingGraph) -> None:
    x = g.tensor()
    shape = g.shapes[x]
    targets = [(0, -1), (0, *shape[2:], shape[1]), (0, 1, *shape[1:])]
    if len(shape) > 2:
        targets += [(0, shape[1], -1), (0, shape[1] * shape[2], *shape[3:])]
    if shape[1] % 2 == 0:
        targets.append((0, 2, shape[1] // 2, *shape[2:]))
    if g.draw.random() < 0.2:
        g.add("Flatten", x)
    else:
        g.add("Reshape", x, g.sizes(g.draw.choice(targets)))


def _extra_axis(g: GrowingGraph) -> None:
    x = g.tensor(2, 3, 4)
    ones = [axis for axis, size in enumerate(g.shapes[x]) if size == 1]
    if ones and len(g.shapes[x]) > 2:
        g.axes("Squeeze", x, [g.draw.choice(ones)])
    else:
        g.axes("Unsqueeze", x, [g.draw.randint(1, len(g.shapes[x]))])


def _reduction(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    op, rank = (
        g.draw.choice(("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax")),
        len(g.shapes[x]),
    )
    axes = sorted(g.draw.sample(range(1, rank), g.draw.randint(1, rank - 1)))
    keep = g.draw.choice((0, 1)) if len(axes) < rank - 1 else 1
    signed = [axis - g.draw.choice((0, rank)) for axis in axes]
    g.axes(op, x, signed, since=13 if op == "ReduceSum" else 18, keepdims=keep)


def _padding(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    rank, mode = len(g.shapes[x]), g.draw.choice(("constant", "constant", "edge", "reflect"))
    first = g.draw.choice((1, 2, 2, 2))
    pads = [0 if axis < first else g.draw.randint(0, 2) for axis in range(rank)] * 2
    if mode == "reflect" and any(pad >= size for pad, size in zip(pads, g.shapes[x], strict=False)):
        raise UnfitError
    g.add(
        "Pad",
        x,
        g.sizes(pads),
        *([g.net.const(1.5)] if mode == "constant" and g.draw.random() < 0.5 else []),
        mode=mode,
    )


def _resizing(g: GrowingGraph) -> None:
    x = g.tensor(4, fits=lambda shape: max(shape[2:]) < 10)
    mode = g.draw.choice(("nearest", "nearest", "linear"))
    nothing = g.net.const([]) if g.net.opset < 13 else ""
    coordinates = g.draw.choice(("asymmetric", "half_pixel", "align_corners"))
    g.add(
        "Resize",
        x,
        nothing,
        g.net.const([1, 1, 2, 2]),
        mode=mode,
        coordinate_transformation_mode=coordinates,
    )


def _statistics(g: GrowingGraph) -> None:
    x = g.tensor(3, 4)
    op, shape = (
        g.draw.choice(
            ("Softmax", "LayerNormalization", "InstanceNormalization", "LRN", "DepthToSpace")
        ),
        g.shapes[x],
    )
    if op == "Softmax":
        g.add(op, x, axis=g.draw.choice((1, -1)))
    elif op == "LayerNormalization" and shape[-1] > 1:
        g.add(op, x, g.net.normal(shape[-1]), g.net.normal(shape[-1]))
    elif op == "InstanceNormalization" and np.prod(shape[2:]) > 1:
        g.add(op, x, g.net.normal(shape[1]), g.net.normal(shape[1]))
    elif op == "LRN" and len(shape) == 4:
        g.add(op, x, size=3)
    elif op == "DepthToSpace" and len(shape) == 4 and shape[1] % 4 == 0:
        g.add(op, x, blocksize=2, mode=g.draw.choice(("DCR", "CRD")))


def _gate(g: GrowingGraph) -> None:
    x = g.tensor(4)
    channels = g.shapes[x][1]
    pooled = g.add("GlobalAveragePool", x)
    narrow = g.add("Relu", g.add("Conv", pooled, g.net.normal(3, channels, 1, 1), g.net.normal(3)))
    g.add(
        "Mul",
        *g.draw.sample(
            (x, g.add("Sigmoid", g.add("Conv", narrow, g.net.normal(channels, 3, 1, 1)))), 2
        ),
    )


def _branch(g: GrowingGraph) -> None:
    """An If whose branches read a tensor from outside."""
    x = g.tensor()
    if all(value.name != "which" for value in g.net.inputs):
        g.net.inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    branches = {}
    for key, op in (("then_branch", "Neg"), ("else_branch", "Relu")):
        name = f"{key}{len(g.net.nodes)}"
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[key] = helper.make_graph([helper.make_node(op, [x], [name])], key, [], [output])
    g.shapes[g.net.node("If", "which", **branches)] = g.shapes[x]


def _round_trip(g: GrowingGraph) -> None:
    """To half precision and back."""
    x = g.tensor()
    g.shapes[
        g.net.node("Cast", g.net.node("Cast", x, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    ] = g.shapes[x]


MOVES: dict[Callable[[GrowingGraph], None], int] = {
    _convolution: 11,
    _residual: 5,
    _product: 5,
    _product_between_reshapes: 3,
    _combination: 6,
    _constant: 4,
    _activation: 3,
    _pooling: 4,
    _concatenation: 4,
    _reshaping: 4,
    _transposition: 3,
    _selection: 3,
    _batch_norm: 2,
    _reduction: 2,
    _padding: 2,
    _resizing: 2,
    _statistics: 2,
    _extra_axis: 2,
    _gate: 1,
    _branch: 1,
    _round_trip: 1,
}
