"""One model that holds everything which a round trip is known to lose."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def value(
    name: str, dtype: int = TensorProto.FLOAT, shape: tuple[int | str, ...] = (2, 4)
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: dict[str, np.ndarray] | None = None,
    opset: int = 21,
    ir: int = 10,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def everything() -> onnx.ModelProto:
    """Metadata, odd types, a subgraph with a capture, a local function, sparse and overridable
    initializers, annotations."""
    made = model(
        _nodes(),
        [value("x"), value("flag", TensorProto.BOOL, ()), value("override", shape=(4,))],
        [
            value("y"),
            value("text", TensorProto.STRING, (1,)),
            value("low", shape=(4,)),
            value("sum", shape=(4,)),
        ],
        {
            "w": np.ones((4, 4), np.float32),
            "override": np.ones(4, np.float32),
            "outer": np.ones((2, 4), np.float32),
        },
    )
    made.opset_import.append(helper.make_opsetid("local", 1))
    made.functions.append(
        helper.make_function(
            "local",
            "Twice",
            ["a"],
            ["b"],
            [helper.make_node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 21)],
            overload="v2",
        )
    )
    made.domain, made.model_version, made.doc_string = "some.domain", 7, "a model"
    helper.set_model_props(made, {"author": "someone", "empty": ""})
    _plant_tensors(made.graph)
    training = made.training_info.add()
    training.algorithm.name = "step"
    training.algorithm.node.append(helper.make_node("Identity", ["w"], ["w_next"]))
    training.update_binding.add(key="w", value="w_next")
    return made


def _nodes() -> list[onnx.NodeProto]:
    then = helper.make_graph(
        [helper.make_node("Add", ["product", "outer"], ["then_y"])], "then", [], [value("then_y")]
    )
    otherwise = helper.make_graph(
        [helper.make_node("Identity", ["product"], ["else_y"])], "else", [], [value("else_y")]
    )
    nodes = [
        helper.make_node("Constant", [], ["three"], value_float=3.0, doc_string="a number"),
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Constant", [], ["words"], value_strings=["a"]),
        helper.make_node("MatMul", ["x", "w"], ["product"], name="gemm", doc_string="a product"),
        helper.make_node("If", ["flag"], ["branch"], then_branch=then, else_branch=otherwise),
        helper.make_node("Twice", ["branch"], ["twice"], domain="local", overload="v2"),
        helper.make_node("Clip", ["twice", "", "three"], ["y"], name="clip"),
        helper.make_node("Identity", ["words"], ["text"]),
        helper.make_node("DequantizeLinear", ["nibbles", "override"], ["low"], axis=0),
        helper.make_node("Cast", ["eighths"], ["eighths_f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["sparse", "axes"], ["reduced"], keepdims=0),
        helper.make_node("Add", ["eighths_f", "reduced"], ["sum"]),
    ]
    nodes[3].metadata_props.add(key="namespace", value="layer1")
    return nodes


def _plant_tensors(graph: onnx.GraphProto) -> None:
    graph.initializer.append(helper.make_tensor("nibbles", TensorProto.INT4, [4], [1, -2, 3, -4]))
    graph.initializer.append(
        helper.make_tensor("eighths", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, 0.5, -1.0])
    )
    graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [1], [0.1]))
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [5.0])
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            values, helper.make_tensor("at", TensorProto.INT64, [1], [2]), [2, 4]
        )
    )
    annotation = graph.quantization_annotation.add(tensor_name="product")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    graph.value_info.append(value("product"))
    graph.value_info[0].doc_string = "kept"
    graph.metadata_props.add(key="graph", value="main")
