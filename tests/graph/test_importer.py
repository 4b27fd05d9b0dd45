from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.errors import InputError, LiftError, OpsetError
from onnxbolt.graph.importer import check_versions, import_model, load_model
from tests.graph.planted import everything, model, value


def relu(opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    return model(
        [helper.make_node("Relu", ["x"], ["y"])], [value("x")], [value("y")], opset=opset, ir=ir
    )


def test_nodes_know_where_they_came_from() -> None:
    source = everything()
    graph = import_model(source)
    gemm = next(node for node in graph.nodes if node.op == "MatMul")
    assert gemm.origin == source.graph.node[3]
    assert gemm.provenance == ("gemm",)
    unnamed = next(node for node in graph.nodes if node.op == "Twice")
    assert unnamed.provenance == ("twice",)
    assert unnamed.domain == "local"


def test_constants_are_initializers_and_constant_nodes() -> None:
    graph = import_model(everything())
    clip = next(node for node in graph.nodes if node.op == "Clip")
    assert isinstance(clip.inputs[2], gs.Constant)
    assert clip.inputs[2].values == np.float32(3)
    assert clip.inputs[1].is_empty()
    assert graph.constants["axes"].values.tolist() == [0]
    assert graph.constants["w"].proto.name == "w"


def test_sparse_string_and_overridable_tensors_are_no_constants() -> None:
    graph = import_model(everything())
    names = {tensor.name: tensor for node in graph.nodes for tensor in node.inputs}
    for name in ("override", "sparse", "words"):
        assert isinstance(names[name], gs.Variable)
    assert names["sparse"].shape == [2, 4]


def test_values_are_decoded_on_first_use_and_read_only() -> None:
    constant = import_model(everything()).constants["w"]
    assert constant.source_values.array is None
    assert constant.dtype == np.float32
    assert constant.shape == (4, 4)
    assert not constant.values.flags.writeable
    assert constant.untouched
    constant.values = constant.values * 2
    assert not constant.untouched


def test_types_without_numpy_counterpart_come_from_ml_dtypes() -> None:
    graph = import_model(everything())
    assert graph.constants["nibbles"].values.astype(np.int8).tolist() == [1, -2, 3, -4]
    assert str(graph.constants["eighths"].dtype) == "float8_e4m3fn"


def test_captured_names_include_nested_subgraphs_and_training() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["a", "local"], ["i"])], "inner", [], [value("i")]
    )
    then = helper.make_graph(
        [
            helper.make_node("Relu", ["b"], ["local"]),
            helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner),
        ],
        "then",
        [],
        [value("o")],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=then)
    made = model([node], [value("a"), value("b"), value("c", TensorProto.BOOL, ())], [value("y")])
    assert import_model(made).captured == {"a", "b", "c"}
    assert import_model(everything()).captured == {"product", "outer", "w", "scale"}


@pytest.mark.parametrize(("ir", "inputs"), [(3, ["x"]), (4, ["x", "w"])])
def test_initializers_that_are_inputs(ir: int, inputs: list[str]) -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x"), value("w")],
        [value("y")],
        {"w": np.ones((2, 4), np.float32)},
        opset=11,
        ir=ir,
    )
    graph = import_model(made)
    assert [tensor.name for tensor in graph.inputs] == inputs
    assert isinstance(graph.nodes[0].inputs[1], gs.Constant) == (ir == 3)


def test_load_reads_external_data(tmp_path: Path) -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x")],
        [value("y")],
        {"w": np.full((2, 4), 3, np.float32)},
    )
    onnx.save(
        made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    loaded = load_model(tmp_path / "m.onnx")
    assert numpy_helper.to_array(loaded.graph.initializer[0]).tolist() == [[3] * 4] * 2
    data = (tmp_path / "m.data").read_bytes()
    (tmp_path / "m.data").write_bytes(data[:-4])
    with pytest.raises(InputError, match=r"m\.data"):
        load_model(tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    with pytest.raises(InputError, match="put the data file beside the model"):
        load_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("columns", [4, 2**18], ids=["small", "large"])
def test_data_lie_behind_links_as_in_a_cache_of_models(tmp_path: Path, columns: int) -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, columns])],
        {"w": np.full((2, columns), 3, np.float32)},
    )
    blobs, snapshot, other = (tmp_path / name for name in ("blobs", "snapshot", "other"))
    for folder in (blobs, snapshot, other):
        folder.mkdir()
    onnx.save(made, blobs / "1f2e", save_as_external_data=True, location="m.data", size_threshold=0)
    (blobs / "m.data").rename(blobs / "3d4c")
    (snapshot / "m.onnx").symlink_to("../blobs/1f2e")
    (snapshot / "m.data").symlink_to("../blobs/3d4c")
    assert import_model(load_model(snapshot / "m.onnx")).constants["w"].values.max() == 3
    # a model of another directory may not read there
    (other / "m.onnx").write_bytes((blobs / "1f2e").read_bytes())
    (other / "m.data").symlink_to("../blobs/3d4c")
    with pytest.raises(InputError, match="leads out of the model's directory"):
        load_model(other / "m.onnx")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = everything().SerializeToString()
    for content in (b"", b"hello, this is text", whole[:-9], whole[: len(whole) // 2]):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.onnx: not an ONNX model, or truncated"):
            load_model(tmp_path / "bad.onnx")
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path / "absent.onnx")
    with pytest.raises(InputError, match="is a directory, not a regular file; name a file"):
        load_model(tmp_path)


def test_tensors_that_nothing_produces() -> None:
    with pytest.raises(
        InputError, match="node Relu needs the tensor 'absent', which no node produces"
    ):
        import_model(
            model([helper.make_node("Relu", ["absent"], ["y"])], [value("x")], [value("y")])
        )
    with pytest.raises(InputError, match="the graph needs the tensor 'z'"):
        import_model(model([helper.make_node("Relu", ["x"], ["y"])], [value("x")], [value("z")]))


@pytest.mark.parametrize("opset", [-1, 0, 99])
def test_opsets_out_of_range(opset: int) -> None:
    with pytest.raises(
        OpsetError, match=f"opset {opset} is not supported; onnx .* support 1 to [0-9]+"
    ):
        check_versions(relu(opset))


def test_versions_at_the_limits() -> None:
    check_versions(relu(1, 3))
    with pytest.raises(OpsetError, match="IR version 99"):
        check_versions(relu(17, 99))
    orphan = relu()
    orphan.opset_import[0].domain = "elsewhere"
    check_versions(orphan)
    with pytest.raises(LiftError, match="only domains other than ONNX's default one"):
        import_model(orphan)
    del orphan.opset_import[:]
    with pytest.raises(OpsetError, match="it imports no opset"):
        check_versions(orphan)


def test_sizes_below_zero_are_unknown_in_subgraphs_too(tmp_path: Path) -> None:
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["o"])], "then", [], [value("o", shape=(-1, 4))]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=then)
    made = model(
        [node],
        [value("x", shape=(-1, 4)), value("c", TensorProto.BOOL, ())],
        [value("y", shape=(-2, 4))],
    )
    assert import_model(made).inputs[0].shape == [None, 4]
    onnx.save(made, tmp_path / "in.onnx")
    read = load_model(tmp_path / "in.onnx")
    branch = read.graph.node[0].attribute[0].g
    for values in (read.graph.input[:1], read.graph.output, branch.output):
        assert [dim.WhichOneof("value") for dim in values[0].type.tensor_type.shape.dim] == [
            None,
            "dim_value",
        ]
