"""examples/triton: repositories, their config.pbtxt parsed by the messages of Triton's client."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]

import onnxbolt
from tests.examples.loading import load
from tests.support import Net, run

triton = load("examples/triton/make_repository.py")


@pytest.fixture(scope="module")
def messages() -> ModuleType:
    """Triton's model_config.proto, from its client, whose package would import grpc."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.fail("tritonclient is missing: run make test, which installs it")
    folder = Path(package.origin or "").parent
    spec = importlib.util.spec_from_file_location(
        "model_config_pb2", folder / "grpc" / "model_config_pb2.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def optimized(directory: Path, rows: int | str = "N", size: int | str = 8) -> Path:
    """An optimized model, and a file in the place of its library."""
    made = Net({"x": (rows, 3, size, size), "ids": (rows,)}, types={"ids": onnx.TensorProto.INT64})
    hidden = made.node("Relu", made.conv("x", 3, 16, 3, pads=[1, 1, 1, 1]))
    row = made.node("Gather", made.normal(8, 16), "ids")
    pooled = made.node("Flatten", made.node("GlobalAveragePool", hidden))
    model = made.model(made.linear(made.node("Add", pooled, row), 16, 24), hidden)
    out = directory / "fast.onnx"
    onnxbolt.optimize(model, out, fuse="all", archs=("sm_80",), library=False, verify=False)
    onnxbolt.get_library_path(out).write_bytes(b"library")
    (directory / "fast.onnxbolt.notice.txt").write_text("licences")
    return out


def parsed(messages: ModuleType, folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), messages.ModelConfig())


def test_a_repository_has_model_library_and_configuration(
    messages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = optimized(tmp_path, size="S")
    repository = tmp_path / "models"
    triton.main([str(source), str(repository), "--max-batch", "32", "--mount", "/models/"])
    assert capsys.readouterr().out == f"wrote {repository / 'fast'}\n"
    folder = repository / "fast"
    assert (folder / "1" / "model.onnx").read_bytes() == source.read_bytes()
    assert (folder / "1" / "model.onnxbolt.so").read_bytes() == b"library"
    assert (folder / "1" / "model.onnxbolt.notice.txt").read_text() == "licences"

    config = parsed(messages, folder)
    assert (config.name, config.backend, config.max_batch_size) == ("fast", "onnxruntime", 32)
    types = messages.DataType
    assert [(each.name, each.data_type, [*each.dims]) for each in config.input] == [
        ("x", types.Value("TYPE_FP32"), [3, -1, -1]),
        ("ids", types.Value("TYPE_INT64"), []),
    ]
    assert [(each.data_type, [*each.dims]) for each in config.output] == [
        (types.Value("TYPE_FP32"), [24]),
        (types.Value("TYPE_FP32"), [16, -1, -1]),
    ]
    assert [*config.model_operations.op_library_filename] == ["/models/fast/1/model.onnxbolt.so"]
    (group,) = config.instance_group
    assert group.kind == messages.ModelInstanceGroup.KIND_GPU
    assert config.HasField("dynamic_batching")
    assert config.parameters["cudnn_conv_algo_search"].string_value == "2"  # sizes vary


def test_fixed_sizes_search_and_are_not_batched(messages: ModuleType, tmp_path: Path) -> None:
    folder = triton.make_repository(optimized(tmp_path, 2), tmp_path, "a.b-1", 0, "/m")
    config = parsed(messages, folder)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [[*each.dims] for each in config.input] == [[2, 3, 8, 8], [2]]
    assert config.parameters["cudnn_conv_algo_search"].string_value == "0"


def test_external_data_is_copied(tmp_path: Path) -> None:
    made = Net({"x": ("N", 64)})
    model = made.model(made.linear("x", 64, 8192))
    source = tmp_path / "large.onnx"
    onnxbolt.optimize(
        model,
        source,
        fuse="all",
        archs=("sm_80",),
        library=False,
        verify=False,
        save_as_external_data=True,
    )
    onnxbolt.get_library_path(source).write_bytes(b"library")
    folder = triton.make_repository(source, tmp_path / "models", "large", 8, "/m")
    feeds = {"x": np.ones((2, 64), np.float32)}
    np.testing.assert_array_equal(run(folder / "1" / "model.onnx", feeds)[0], run(source, feeds)[0])


@pytest.mark.parametrize("name", ['a "quoted" name', "line\nbreak", "back\\slash", "Größe", "x:0"])
def test_names_are_escaped(messages: ModuleType, name: str) -> None:
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 3])
    config = text_format.Parse(f"input {{ {triton.described(value, 4)} }}", messages.ModelConfig())
    assert (config.input[0].name, [*config.input[0].dims]) == (name, [3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-batch", "8"], "x has shape [2, 3, 8, 8], whose first size is no open batch"),
        (["--name", "../up"], "--name '../up': letters, digits"),
        (["--name", ""], "wrote"),
    ],
)
def test_nothing_is_written_for_what_triton_cannot_serve(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(optimized(tmp_path, 2)), str(tmp_path / "models"), *arguments]
    if message == "wrote":
        triton.main(command)
        with pytest.raises(SystemExit) as ended:  # it exists by now
            triton.main(command)
        assert "File exists" in capsys.readouterr().err
        assert (tmp_path / "models/fast/config.pbtxt").is_file()
    else:
        with pytest.raises(SystemExit) as ended:
            triton.main(command)
        assert message in capsys.readouterr().err
        assert not (tmp_path / "models").exists()
    assert ended.value.code == 1


def test_a_missing_library_and_a_missing_type_are_errors(tmp_path: Path) -> None:
    source = optimized(tmp_path, 2)
    onnxbolt.get_library_path(source).unlink()
    with pytest.raises(ValueError, match=r"does not exist\. Run: onnxbolt build"):
        triton.make_repository(source, tmp_path, "m", 0, "/m")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.COMPLEX64, [3])
    with pytest.raises(ValueError, match="x: Triton has no type"):
        triton.described(value, 0)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = optimized(tmp_path, 2)

    def full(file: Path, place: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(triton.shutil, "copy", full)
    with pytest.raises(OSError, match="No space left"):
        triton.make_repository(source, tmp_path / "models", "m", 0, "/m")
    assert not (tmp_path / "models" / "m").exists()
