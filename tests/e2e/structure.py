"""Small models that are odd in how they are put together: names, outputs, types, constants,
sizes, sharing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support import Net

BLOCK = (2, 5, 8, 8)  # the input of most of them


def _conv_relu(net: Net, x: str = "x", channels: int = 5, out: int = 6) -> str:
    return net.node("Relu", net.conv(x, channels, out, 3, pads=[1, 1, 1, 1]))


def initializers_as_inputs() -> ModelProto:
    """IR 3, which demands that initializers are listed as inputs: they are constants all the
    same."""
    net = Net({"x": BLOCK}, opset=11)
    model = net.model(
        net.node("Softmax", net.node("Flatten", net.conv(_conv_relu(net), 6, 3)), axis=1)
    )
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    )
    return model


def overridable_weight() -> ModelProto:
    """From IR 4 on an initializer that is listed as an input may be given another value at run
    time: it is no constant."""
    net = Net({"x": BLOCK})
    model = net.model(net.conv(_conv_relu(net), 6, 3))
    weight = model.graph.initializer[0]
    model.graph.input.append(
        helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    )
    return model


def outputs_everywhere() -> ModelProto:
    """Outputs in the middle of chains, one of them twice, an input that is an output, one that
    nothing reads."""
    net = Net({"x": BLOCK, "unused": (3,)})
    convolution = net.conv("x", 5, 6, 3)
    activated = net.node("Relu", convolution)
    total = net.node("Add", net.conv(activated, 6, 6), activated)
    model = net.model(
        convolution, activated, net.node("Sigmoid", total), total, net.node("Identity", activated)
    )
    model.graph.output.append(model.graph.output[1])
    model.graph.output.append(model.graph.input[0])
    return model


def constants_as_outputs() -> ModelProto:
    """An initializer, a folded constant and a weight that are outputs."""
    net = Net({"x": (4, 6)})
    weight = net.normal(6, 6)
    model = net.model(
        net.node("Relu", net.node("MatMul", "x", weight)),
        net.node("Add", net.normal(2), net.normal(2)),
    )
    model.graph.output.append(helper.make_tensor_value_info(weight, TensorProto.FLOAT, [6, 6]))
    return model


def nothing_to_fuse() -> ModelProto:
    """A graph of one Identity, from input to output."""
    net = Net({"x": (2, 4)})
    return net.model(net.node("Identity", "x"))


def local_functions() -> ModelProto:
    """Nodes that are functions of the model, one with a convolution in it."""
    net = Net({"x": BLOCK})
    model = net.model(net.node("Relu", net.conv("x", 5, 6)))
    opset = [helper.make_opsetid("", 17)]
    bodies = {
        "Square": [helper.make_node("Mul", ["a", "a"], ["b"])],
        "Convolve": [
            helper.make_node("Conv", ["a", "w"], ["t"]),
            helper.make_node("Relu", ["t"], ["b"]),
        ],
    }
    inputs = {"Square": ["a"], "Convolve": ["a", "w"]}
    model.functions.extend(
        helper.make_function("local", name, inputs[name], ["b"], nodes, opset)
        for name, nodes in bodies.items()
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    (y,) = model.graph.output
    weight = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal((7, 6, 3, 3)).astype(np.float32), "local_weight"
    )
    model.graph.initializer.append(weight)
    model.graph.node.append(helper.make_node("Square", [y.name], ["squared"], domain="local"))
    model.graph.node.append(
        helper.make_node("Convolve", ["squared", "local_weight"], ["z"], domain="local")
    )
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 7, 6, 6]))
    return model


def shared_weights() -> ModelProto:
    """One matrix transposed, scaled, gathered from and multiplied by; one convolution's weight
    used with and without normalization."""
    net = Net({"x": (4, 6), "image": (2, 6, 8, 8)})
    weight, filters, bias = net.normal(6, 6), net.normal(6, 6, 1, 1), net.normal(6)
    products = [
        net.node("Gemm", "x", weight, transB=1),
        net.node("Gemm", "x", weight, alpha=2.0),
        net.node("MatMul", "x", weight),
    ]
    rows = net.node("Gather", weight, net.const([0, 3, 3, 1], np.int64))
    plain = net.node("Relu", net.node("Conv", "image", filters, bias))
    normalized = net.batchnorm(net.node("Conv", plain, filters, bias), 6)
    return net.model(
        net.node("Add", net.node("Sum", *products), rows), net.node("Add", normalized, plain)
    )


def residual_chain() -> ModelProto:
    """More residuals and parameters in a row than one kernel takes."""
    net = Net({"x": BLOCK, "a": BLOCK, "b": BLOCK})
    y = net.conv("x", 5, 5)
    for i, name in enumerate(("a", "b", "x", "a", "b")):
        y = net.node("Elu", net.node("Add", *((y, name) if i % 2 else (name, y))), alpha=0.1 * i)
    for slope in range(9):
        y = net.node("LeakyRelu", net.node("Tanh", y), alpha=slope / 10)
    return net.model(y)


def normalized_and_read() -> ModelProto:
    """Convolutions whose normalization cannot be folded, since others read them too, the last
    one a subgraph."""
    net = Net({"x": BLOCK, "which": ()}, types={"which": TensorProto.BOOL})
    first = net.conv("x", 5, 6, 3)
    second = net.conv(net.node("Relu", net.batchnorm(first, 6)), 6, 6)
    normalized = net.batchnorm(second, 6)
    branches = {}
    for name, op, read in (("then_branch", "Neg", second), ("else_branch", "Abs", normalized)):
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(
            [helper.make_node(op, [read], [f"{name}_y"])], name, [], [output]
        )
    return net.model(
        net.node("Relu", net.conv(net.node("If", "which", **branches), 6, 3)), net.conv(first, 6, 4)
    )


def few_channels() -> ModelProto:
    """1, 2, 3, 5, 6 and 7 channels, one after the other and side by side."""
    net = Net({"x": (2, 1, 9, 7)})
    y, channels, parts = "x", 1, []
    for out in (2, 3, 5, 6, 7, 1):
        y = net.node("Relu", net.conv(y, channels, out, 3, bias=out % 2 == 0, pads=[1, 1, 1, 1]))
        parts.append(y)
        channels = out
    return net.model(net.conv(net.node("Concat", *parts, axis=1), 24, 3))


def geometry() -> ModelProto:
    """auto_pad, asymmetric padding, strides and dilations, 1-D and 3-D, transposed, grouped."""
    net = Net({"x": (2, 6, 11, 10), "volume": (1, 2, 4, 4, 4)})
    outputs = [
        net.conv("x", 6, 5, 3, **attributes)
        for attributes in (
            {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
            {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
            {"auto_pad": "VALID"},
            {"pads": [0, 1, 2, 3], "strides": [3, 2]},
            {"dilations": [2, 3], "pads": [2, 3, 2, 3]},
            {"group": 1, "kernel_shape": [3, 3]},
        )
    ]
    line = net.node("Reshape", "x", net.const([2, 6, -1], np.int64))
    outputs.append(
        net.node(
            "Tanh",
            net.node(
                "Conv",
                line,
                net.normal(3, 6, 4),
                net.normal(3),
                strides=[3],
                pads=[2, 0],
                dilations=[2],
            ),
        )
    )
    outputs.append(
        net.node("ConvTranspose", net.conv("x", 6, 4), net.normal(4, 3, 2, 2), strides=[2, 2])
    )
    outputs.append(net.node("Relu", net.node("Conv", "volume", net.normal(3, 2, 2, 2, 2))))
    outputs.append(net.conv(net.node("Relu", net.conv("x", 6, 9, 3, group=3)), 9, 4))
    return net.model(*outputs)


def gemm_forms() -> ModelProto:
    """Transposes, factors, and a C of every shape."""
    net = Net({"x": (4, 6), "xt": (6, 4), "c": (4, 10), "column": (4, 1)})
    shapes: tuple[tuple[int, ...] | None, ...] = ((10,), (1, 10), (4, 1), (4, 10), (), (1, 1), None)
    outputs = []
    for i, shape in enumerate(shapes):
        trans_a, trans_b = i % 2, i // 2 % 2
        weight = net.normal(10, 6) if trans_b else net.normal(6, 10)
        added = [] if shape is None else [net.normal(*shape)]
        x = "xt" if trans_a else "x"
        outputs.append(
            net.node(
                "Gemm",
                x,
                weight,
                *added,
                transA=trans_a,
                transB=trans_b,
                alpha=0.5,
                beta=float(i % 3),
            )
        )
    outputs += [
        net.node("Relu", net.node("Gemm", "x", net.normal(6, 10), name, beta=0.5))
        for name in ("c", "column")
    ]
    return net.model(*outputs, net.node("Gemm", "xt", "c"))


def product_ranks() -> ModelProto:
    """Products of rank 1 to 5, with constants on either side, of one row, column or step."""
    net = Net(
        {"v": (5,), "m": (4, 5), "one": (4, 1), "deep": (2, 3, 4, 5), "deeper": (2, 1, 3, 4, 5)}
    )
    products = [("v", (5, 3)), ("v", (5,)), ("m", (5,)), ("m", (5, 1)), ("one", (1, 6))]
    products += [("deep", (5, 6)), ("deeper", (5, 6)), ("deep", (3, 5, 7))]
    outputs = [net.node("Tanh", net.node("MatMul", x, net.normal(*shape))) for x, shape in products]
    return net.model(*outputs, net.node("Relu", net.node("MatMul", net.normal(3, 4), "m")))


def odd_names() -> ModelProto:
    """Names that are markup, paths or no ASCII, and nodes without any."""
    net = Net({"x": BLOCK})
    model = net.model(net.conv(_conv_relu(net), 6, 3))
    renamed = {
        name: f"[red]{name} : 0|α/"
        for node in model.graph.node
        for name in (*node.input, *node.output)
        if name not in ("", "x")
    }
    for i, node in enumerate(model.graph.node):
        node.name = "" if i % 2 else f"[bold]{node.name}\\"
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    for value in (*model.graph.initializer, *model.graph.output):
        value.name = renamed[value.name]
    return model


def non_finite_constants() -> ModelProto:
    """NaN in a weight, infinities in a bias and a mask, numbers beyond fp16's range."""
    net = Net({"x": BLOCK, "s": (2, 6, 6)})
    weight, bias = net.rng.standard_normal((6, 5, 1, 1)), net.rng.standard_normal(6)
    weight[2], bias[3], bias[4] = np.nan, np.inf, -np.inf
    y = net.conv(net.node("Relu", net.node("Conv", "x", net.const(weight))), 6, 4)
    masked = net.node(
        "Softmax",
        net.node("Add", net.linear("s", 6, 6), net.const(np.triu(np.full((6, 6), -np.inf), 1))),
    )
    large = net.node("Mul", net.linear(masked, 6, 6), net.const(1e6))
    return net.model(
        y,
        net.node("Sigmoid", net.node("Conv", "x", net.normal(6, 5, 1, 1), net.const(bias))),
        net.node("Softmax", large),
        net.node("Tanh", net.linear(net.node("Mul", large, net.const(1e-6)), 6, 3)),
    )


def empty_tensors() -> ModelProto:
    """A batch of nothing, a slice of no channels, a product over nothing."""
    net = Net({"x": (0, 5, 8, 8), "v": (3, 0), "full": BLOCK})
    y = _conv_relu(net, "full")
    none = net.node(
        "Slice", y, net.const([0], np.int64), net.const([0], np.int64), net.const([1], np.int64)
    )
    head = net.linear(net.node("Flatten", net.node("GlobalAveragePool", _conv_relu(net))), 6, 3)
    return net.model(
        head, net.node("MatMul", "v", net.normal(0, 4)), net.node("Concat", y, none, axis=1)
    )


def scalars() -> ModelProto:
    """Tensors of rank 0 as inputs, constants and outputs."""
    net = Net({"x": (4, 6), "s": ()})
    y = net.node("Mul", net.linear("x", 6, 5), "s")
    return net.model(
        net.node("Relu", net.node("Add", y, net.const(2.0))),
        net.node("ReduceSum", y, keepdims=0),
        net.node("Exp", "s"),
    )


def quantized_island() -> ModelProto:
    """QuantizeLinear and DequantizeLinear around convolutions, an int8 weight, an int4 weight,
    an integer product."""
    net = Net({"x": BLOCK}, opset=21)
    scale, zero = net.const(0.02), net.const(128, np.uint8)

    def rounded(x: str) -> str:
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, scale, zero), scale, zero)

    weight = net.const(net.rng.integers(-128, 127, (6, 5, 3, 3)), np.int8)
    y = net.node(
        "Conv",
        rounded("x"),
        net.node("DequantizeLinear", weight, net.const(0.02), net.const(0, np.int8)),
    )
    y = net.node("Relu", net.conv(rounded(y), 6, 8))
    net.initializers.append(
        helper.make_tensor("w4", TensorProto.INT4, [8, 7], np.arange(56) % 16 - 8)
    )
    flat = net.node("Flatten", net.node("GlobalAveragePool", y))
    product = net.node("MatMul", flat, net.node("DequantizeLinear", "w4", net.const(0.1)))
    integers = net.node(
        "MatMulInteger",
        net.node("QuantizeLinear", product, net.const(1.0), zero),
        net.const(np.eye(7), np.uint8),
    )
    model = net.model(net.node("Relu", product), net.node("Cast", integers, to=TensorProto.FLOAT))
    model.ir_version = 10
    return model


def in_half_precision() -> ModelProto:
    """An fp16 original with an fp32 island."""
    return _typed(TensorProto.FLOAT16, np.dtype(np.float16), 17)


def in_bfloat16() -> ModelProto:
    """A bf16 original with an fp32 island."""
    return _typed(TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16), 22)


def _typed(onnx_type: int, numpy_type: np.dtype, opset: int) -> ModelProto:
    net = Net({"x": BLOCK}, opset=opset, types={"x": onnx_type})

    def drawn(*shape: int) -> str:
        return net.const(net.rng.standard_normal(shape) * 0.3, numpy_type)

    y = net.node("Relu", net.node("Conv", "x", drawn(6, 5, 3, 3), drawn(6)))
    y = net.node("Mul", y, net.node("Sigmoid", y))
    y = net.node(
        "Cast",
        net.node("Relu", net.conv(net.node("Cast", y, to=TensorProto.FLOAT), 6, 6)),
        to=onnx_type,
    )
    y = net.node("Flatten", net.node("GlobalAveragePool", net.node("Conv", y, drawn(5, 6, 1, 1))))
    return net.model(net.node("Tanh", net.node("Gemm", y, drawn(5, 3), drawn(3))))


def unusual_types() -> ModelProto:
    """Strings, sequences, random numbers, an image of bytes, a sparse weight."""
    net = Net({"image": (1, 8, 8, 3)}, types={"image": TensorProto.UINT8})
    net.initializers.append(
        numpy_helper.from_array(np.array(["a", "b", "c", "d"], object), "labels")
    )
    pixels = net.node(
        "Transpose", net.node("Cast", "image", to=TensorProto.FLOAT), perm=[0, 3, 1, 2]
    )
    centered = net.node(
        "Sub", net.node("Mul", pixels, net.const(1 / 255)), net.const(np.full((3, 1, 1), 0.5))
    )
    scaled = net.node("Div", centered, net.const(0.25))
    y = net.node("Relu", net.conv(scaled, 3, 6, 3))
    part = net.node("SequenceAt", net.node("SplitToSequence", y, axis=1), net.const(2, np.int64))
    joined = net.node("ConcatFromSequence", net.node("SequenceConstruct", part, part), axis=1)
    noise = net.node("Mul", net.node("RandomNormalLike", joined, seed=1.0), net.const(0.0))
    scores = net.linear(
        net.node(
            "Flatten", net.node("GlobalMaxPool", net.conv(net.node("Add", joined, noise), 2, 4))
        ),
        4,
        4,
    )
    model = net.model(net.node("Gather", "labels", net.node("ArgMax", scores, axis=1)), scores)
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "sparse")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            values, numpy_helper.from_array(np.array([1, 7], np.int64)), [4, 4]
        )
    )
    model.graph.node.append(
        onnx.helper.make_node("MatMul", [model.graph.output[1].name, "sparse"], ["picked"])
    )
    model.graph.output.append(helper.make_tensor_value_info("picked", TensorProto.FLOAT, [1, 4]))
    return model
