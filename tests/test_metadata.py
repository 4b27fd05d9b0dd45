"""metadata_props read from the file's bytes: the same as onnx reads, and clear errors for what
is no model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.metadata import read_metadata


def model(**entries: str) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(1000, dtype=np.float64), "w")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [1000])],
        [weight],
    )
    made = helper.make_model(
        graph, producer_name="someone", doc_string="words", model_version=2**40
    )
    helper.set_model_props(made, entries)
    return made


@pytest.mark.parametrize(
    "entries",
    [{}, {"a": "1"}, {"onnxbolt.digest": "f" * 64, "": "", "empty": "", "größe": "μ" * 300}],
)
def test_reads_what_onnx_reads(entries: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(**entries), path)
    assert (
        read_metadata(path)
        == read_metadata(str(path))
        == read_metadata(path.read_bytes())
        == entries
    )


def test_other_wire_types_are_stepped_over() -> None:
    # fields that no ModelProto has, of 8 and of 4 bytes
    fixed = bytes([0x09]) + bytes(8) + bytes([0x0D]) + bytes(4)
    assert read_metadata(fixed + model(a="1").SerializeToString()) == {"a": "1"}


def test_file_that_is_cut_off() -> None:
    whole = model(a="1" * 50).SerializeToString()
    for end in (len(whole) - 1, len(whole) // 2, 5):
        with pytest.raises(InputError, match="not an ONNX model, or is truncated"):
            read_metadata(whole[:end])


@pytest.mark.parametrize("data", [b"\x7fELF" + bytes(60), b"PK\x03\x04 archive", b"\xff" * 64])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"other\.onnx is not an ONNX model"):
        read_metadata(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"m\.onnx: cannot be read: No such file"):
        read_metadata(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").touch()
    with pytest.raises(InputError, match=r"m\.onnx is empty"):
        read_metadata(tmp_path / "m.onnx")


def test_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    size = 6 * 2**30  # sparse on disk: one unknown field of zeros before the model
    length = bytes([(size >> shift) & 0x7F | 0x80 for shift in range(0, 28, 7)]) + bytes(
        [size >> 28]
    )
    with path.open("wb") as file:
        file.write(bytes([0xFA, 0x3F]) + length)  # field 1023, length-delimited
        file.seek(size, 1)
        file.write(model(a="1").SerializeToString())
    assert read_metadata(path) == {"a": "1"}


def test_deployment_needs_no_onnx() -> None:
    program = (
        "import onnxbolt, sys; onnxbolt.session_options, onnxbolt.LibraryError; print({'onnx',"
        " 'onnxruntime'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )
