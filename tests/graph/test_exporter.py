from __future__ import annotations

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.graph.edit import insert, remove
from onnxbolt.graph.exporter import INTERNAL_DOMAIN, export_model
from onnxbolt.graph.importer import import_model, load_model
from onnxbolt.graph.saving import save_model
from tests.conftest import ZOO
from tests.graph.planted import everything, model, value

GRAPHS = sorted(path.name for path in ZOO.glob("*.onnx"))


def chain() -> onnx.ModelProto:
    """y = relu(x + w) with x + w written twice as a type."""
    made = model(
        [helper.make_node("Add", ["x", "w"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])],
        [value("x")],
        [value("y")],
        {"w": np.ones((2, 4), np.float32)},
    )
    made.graph.value_info.append(value("sum"))
    return made


def test_round_trip_of_everything() -> None:
    source = everything()
    assert export_model(import_model(source)) == source


@pytest.mark.parametrize("name", GRAPHS)
def test_round_trip_of_the_zoo(name: str) -> None:
    source = onnx.load(ZOO / name, load_external_data=False)
    exported = export_model(import_model(source))
    used = {tensor for node in source.graph.node for tensor in node.input}
    kept = [tensor for tensor in source.graph.initializer if tensor.name in used]
    assert list(exported.graph.initializer) == kept
    for part in ("node", "value_info", "input", "output", "metadata_props"):
        assert list(getattr(exported.graph, part)) == list(getattr(source.graph, part))
    assert exported.ir_version == max(source.ir_version, 8)
    for field in (
        "opset_import",
        "metadata_props",
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "doc_string",
    ):
        assert getattr(exported, field) == getattr(source, field)


def test_ir_is_raised_to_8_and_never_lowered() -> None:
    initializers = {"w": np.ones((2, 4), np.float32)}
    for ir, expected in ((3, 8), (9, 9)):
        made = model(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [value("x"), value("w")],
            [value("y")],
            initializers,
            opset=11,
            ir=ir,
        )
        exported = export_model(import_model(made))
        onnx.checker.check_model(exported, full_check=True)
        assert exported.ir_version == expected
        assert [v.name for v in exported.graph.input] == (["x"] if ir == 3 else ["x", "w"])
        assert list(exported.graph.initializer) == list(made.graph.initializer)


def test_renaming_keeps_the_rest_of_a_node() -> None:
    graph = import_model(everything())
    gemm = next(node for node in graph.nodes if node.op == "MatMul")
    other = gs.Constant("w__2", np.zeros((4, 4), np.float32))
    gemm.inputs[1] = other
    written = next(node for node in export_model(graph).graph.node if node.op_type == "MatMul")
    assert list(written.input) == ["x", "w__2"]
    assert (written.doc_string, written.metadata_props[0].value) == ("a product", "layer1")


def test_new_nodes_come_before_their_readers_and_bring_their_domain() -> None:
    graph = import_model(chain())
    relu = graph.nodes[1]
    total = relu.inputs[0]
    halved = gs.Variable("halved", np.dtype(np.float32), [2, "n"])
    relu.inputs[0] = halved
    insert(
        graph,
        "FusedHalf",
        [total],
        [halved],
        [relu],
        {"ratio": 0.5, "empty": [], "table": np.arange(3)},
        "com.onnxbolt",
    )
    exported = export_model(graph, metadata={"onnxbolt.format": "1"})
    onnx.checker.check_model(exported)
    assert [node.op_type for node in exported.graph.node] == ["Add", "FusedHalf", "Relu"]
    assert {o.domain: o.version for o in exported.opset_import} == {"": 21, "com.onnxbolt": 1}
    assert exported.metadata_props[0].key == "onnxbolt.format"
    assert [v.name for v in exported.graph.value_info] == ["sum", "halved"]
    assert not any(
        o.domain == "com.onnxbolt" for o in export_model(import_model(chain())).opset_import
    )


def test_types_that_are_no_longer_true_are_rewritten() -> None:
    graph = import_model(chain())
    graph.nodes[0].outputs[0].dtype = np.dtype(np.float16)
    assert export_model(graph).graph.value_info[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    graph.nodes[0].outputs[0].shape = None
    assert not export_model(graph).graph.value_info


def test_constants_of_every_type_become_initializers() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.int64, np.bool_):
        graph = import_model(chain())
        graph.nodes[0].inputs[1] = gs.Constant("w_new", np.ones((4, 2)).astype(dtype).T)
        (written,) = export_model(graph).graph.initializer
        assert written.name == "w_new"
        assert numpy_helper.to_array(written).dtype == dtype


def test_functions_are_added_and_replaced_by_name() -> None:
    source = everything()
    new = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    other = helper.make_function(
        "com.onnxbolt",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    assert [
        f.node[0].op_type for f in export_model(import_model(source), [new, other]).functions
    ] == ["Neg", "Neg"]
    assert [f.name for f in export_model(import_model(source), [other]).functions] == ["Twice", "F"]


def test_what_a_stage_must_not_leave_behind() -> None:
    graph = import_model(chain())
    graph.nodes[1].domain = INTERNAL_DOMAIN
    graph.nodes[1].origin = None
    with pytest.raises(ValueError, match="restore"):
        export_model(graph)
    graph = import_model(chain())
    graph.nodes[0].inputs[1] = graph.nodes[1].outputs[0]
    with pytest.raises(ValueError, match="cycle"):
        export_model(graph)


def test_unused_constants_are_dropped_and_captured_ones_kept() -> None:
    graph = import_model(everything())
    remove(graph, [node for node in graph.nodes if node.op in ("MatMul", "DequantizeLinear")])
    names = {tensor.name for tensor in export_model(graph).graph.initializer}
    assert "nibbles" not in names
    assert {"outer", "w", "scale", "override"} <= names


@pytest.mark.parametrize("external", [False, True])
def test_save_and_load(tmp_path: Path, external: bool) -> None:
    source = chain()
    source.graph.initializer.append(
        numpy_helper.from_array(np.arange(5000, dtype=np.float32).reshape(2, 2500), "large")
    )
    source.graph.initializer.append(
        numpy_helper.from_array(np.arange(3000, dtype=np.int64), "larger")
    )
    before = source.SerializeToString()
    save_model(source, tmp_path / "out.onnx", external=external)
    assert sorted(path.name for path in tmp_path.iterdir()) == (
        ["out.onnx", "out.onnx.data"] if external else ["out.onnx"]
    )
    assert load_model(tmp_path / "out.onnx") == onnx.ModelProto.FromString(before)
    assert source.SerializeToString() == before


def test_beyond_the_limit_of_protobuf_data_goes_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.graph.saving.PROTOBUF_LIMIT", 4000)
    source = chain()
    source.graph.initializer.append(numpy_helper.from_array(np.zeros(1000, np.float32), "large"))
    save_model(source, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size == 4096
    onnx.checker.check_model(tmp_path / "out.onnx")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.onnx").write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        save_model(chain(), tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    assert (tmp_path / "out.onnx").read_bytes() == b"before"


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose another place"):
        save_model(chain(), tmp_path / "absent" / "out.onnx")
