"""Memory that optimizing and verifying a large model takes, as a multiple of its weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxbolt
from onnxbolt.graph import weights, wire
from onnxbolt.graph.edit import derived
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import external_files, import_model, load_model
from onnxbolt.graph.saving import save_model

LAYERS, WIDTH = 4, 4096  # 0.25 GiB in fp32
MOST = 2.5
MEASURED = """
import re, sys
import onnxbolt, onnxbolt.pipeline, onnxbolt.verify, onnxbolt.report
def most():  # getrusage starts at what the process took that started this one
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = most()
source, out, precision = sys.argv[1:4]
report = onnxbolt.optimize(source, out, precision=precision, archs="sm_90a", library=False)
assert len(report.fused) and report.passed and report.verification.rows
print(most() - before)
"""


def perceptron(layers: int, width: int) -> ModelProto:
    """A model without the data of its weights w0, w1, .."""
    nodes, initializers, x = [], [], "x"
    for i in range(layers):
        initializers.append(
            TensorProto(name=f"w{i}", dims=[width, width], data_type=TensorProto.FLOAT)
        )
        nodes += [
            helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]),
            helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
        ]
        x = f"r{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, width]) for name in ("x", x)
    ]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((width, width), np.float32) * np.float32(
        (2 / width) ** 0.5
    )


def written(path: Path, layers: int, width: int, external: bool) -> int:
    """Write the model with its data and return the size of its weights in bytes."""
    model, data = perceptron(layers, width), drawn(width)
    if external:
        for i, tensor in enumerate(model.graph.initializer):
            weights.put_apart(tensor, f"{path.name}.data", i * data.nbytes, data.nbytes)
        with path.with_name(f"{path.name}.data").open("wb") as file:
            for _ in range(layers):
                file.write(data.data)
    else:
        for tensor in model.graph.initializer:
            tensor.raw_data = data.tobytes()
    path.write_bytes(model.SerializeToString())
    return layers * data.nbytes


@pytest.mark.parametrize(("precision", "external"), [("fp16", True), ("keep", False)])
def test_a_large_model_takes_few_times_its_size(
    tmp_path: Path, precision: str, external: bool
) -> None:
    size = written(tmp_path / "in.onnx", LAYERS, WIDTH, external)
    command = [
        sys.executable,
        "-c",
        MEASURED,
        str(tmp_path / "in.onnx"),
        str(tmp_path / "out.onnx"),
        precision,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert int(done.stdout) <= MOST * size


@pytest.mark.parametrize("external", [False, True])
def test_large_weights_are_read_when_they_are_asked_for(tmp_path: Path, external: bool) -> None:
    written(tmp_path / "in.onnx", 2, 1024, external)
    model = load_model(tmp_path / "in.onnx")
    assert model.ByteSize() < 10_000
    assert external_files(tmp_path / "in.onnx") <= {tmp_path / "in.onnx", tmp_path / "in.onnx.data"}
    graph = import_model(model)
    constant = graph.constants["w1"]
    np.testing.assert_array_equal(constant.values, drawn(1024))
    assert not constant.values.flags.writeable
    assert constant.is_large
    constant.values = derived(constant, np.transpose, constant.dtype, constant.shape)
    again = numpy_helper.to_array(export_model(graph).graph.initializer[1])
    np.testing.assert_array_equal(again, drawn(1024).T)


@pytest.mark.parametrize("external", [False, True])
def test_a_model_with_weights_in_files_is_saved_whole(tmp_path: Path, external: bool) -> None:
    written(tmp_path / "in.onnx", 2, 1024, not external)
    save_model(load_model(tmp_path / "in.onnx"), tmp_path / "out.onnx", external)
    again = onnx.load(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").exists() == external
    for tensor in again.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), drawn(1024))


@pytest.mark.parametrize("external", [False, True])
def test_pieces_of_a_file_are_what_protobuf_writes(tmp_path: Path, external: bool) -> None:
    written(tmp_path / "in.onnx", 2, 1024, external)
    model = onnx.load(tmp_path / "in.onnx", load_external_data=False)
    model.doc_string, model.graph.doc_string, model.producer_name = "a model", "a graph", "a test"
    model.graph.initializer[0].doc_string = "a weight"
    model.graph.initializer.append(numpy_helper.from_array(np.arange(4), "small"))
    model.metadata_props.add(key="k", value="v")
    onnx.save(model, tmp_path / "in.onnx")
    pieces = b"".join(wire.parts(load_model(tmp_path / "in.onnx"), {}))
    whole = onnx.load(tmp_path / "in.onnx")
    for tensor in whole.graph.initializer:
        tensor.ClearField("data_location")  # onnx sets this field to its default
    assert pieces == whole.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("location", "/etc/passwd"),
        ("location", "../in.onnx.data"),
        ("location", "none"),
        ("offset", "-4"),
        ("offset", str(1 << 62)),
        ("length", "5"),
        ("offset", "x"),
    ],
)
def test_places_of_large_weights_are_checked(tmp_path: Path, entry: str, value: str) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    written(directory / "in.onnx", 1, 1024, external=True)
    (tmp_path / "in.onnx.data").write_bytes((directory / "in.onnx.data").read_bytes())
    model = onnx.load(directory / "in.onnx", load_external_data=False)
    next(e for e in model.graph.initializer[0].external_data if e.key == entry).value = value
    (directory / "in.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(onnxbolt.InputError, match="'w0'"):
        load_model(directory / "in.onnx")
