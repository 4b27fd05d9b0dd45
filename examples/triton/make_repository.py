"""Makes a model repository for Triton's onnxruntime backend from an optimized model:

    python examples/triton/make_repository.py fast.onnx served --name fast --max-batch 32

writes served/fast/config.pbtxt and served/fast/1/ with the model, its external data and its
library. Triton loads the library by its absolute path: --mount says where the repository will be.
docs/deploy/triton.md explains the configuration.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

import onnxbolt

TYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.BFLOAT16: "TYPE_BF16",
}
# numbers of the parameter cudnn_conv_algo_search, by ONNX Runtime's words
SEARCHES = {"EXHAUSTIVE": 0, "HEURISTIC": 1, "DEFAULT": 2}


def make_repository(source: Path, repository: Path, name: str, max_batch: int, mount: str) -> Path:
    """Write the model's folder, which must not exist yet, and return its path.

    `max_batch` is 0 for a model whose first dimension is no batch. Raises ValueError for a model
    that Triton could not serve so, before anything is written.
    """
    library = onnxbolt.get_library_path(source)
    if not library.is_file():
        raise ValueError(f"{library} does not exist. Run: onnxbolt build {source}")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"--name {name!r}: letters, digits, _, . and - make a model's name")
    model = onnx.load(source, load_external_data=False)
    text = configuration(model, name, max_batch, f"{mount}/{name}/1/model.onnxbolt.so", source)
    copies = {source: "model.onnx", library: "model.onnxbolt.so"}
    notice = library.with_suffix(".notice.txt")  # the licences of the library's code
    copies |= {notice: "model.onnxbolt.notice.txt"} if notice.is_file() else {}
    copies |= {source.with_name(data): data for data in external_files(model)}
    version = repository / name / "1"
    version.parent.mkdir(parents=True)
    try:
        version.mkdir()
        for file, copied in copies.items():
            shutil.copy(file, version / copied)
        (version.parent / "config.pbtxt").write_text(text)
    except OSError:
        shutil.rmtree(version.parent)  # Triton would try to load a part of a model
        raise
    return version.parent


def configuration(
    model: onnx.ModelProto, name: str, max_batch: int, library: str, source: Path
) -> str:
    """The text of config.pbtxt; `library` is the path that Triton will load."""
    constants = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    _, options = onnxbolt.cuda_provider(source)
    search = options.get("cudnn_conv_algo_search", "EXHAUSTIVE")
    return "\n".join(
        [
            f"name: {quoted(name)}",
            'backend: "onnxruntime"',
            f"max_batch_size: {max_batch}",
            *(f"input {{ {described(value, max_batch)} }}" for value in inputs),
            *(f"output {{ {described(value, max_batch)} }}" for value in model.graph.output),
            *(["dynamic_batching { }"] if max_batch > 1 else []),
            "# the library registers its operators for GPUs alone: no instance may run on the CPU",
            "instance_group { kind: KIND_GPU count: 1 }",
            f"model_operations {{ op_library_filename: {quoted(library)} }}",
            f"# {search}, for the convolutions that are left to ONNX Runtime",
            'parameters { key: "cudnn_conv_algo_search"'
            f' value {{ string_value: "{SEARCHES[search]}" }} }}',
            "",
        ]
    )


def described(value: onnx.ValueInfoProto, max_batch: int) -> str:
    """Name, type and sizes of an input or output; -1 is a size that varies. A batch is not among
    the sizes."""
    tensor = value.type.tensor_type
    if tensor.elem_type not in TYPES:
        raise ValueError(f"{value.name}: Triton has no type for {value.type}")
    sizes = [size.dim_value or -1 for size in tensor.shape.dim]
    if max_batch:
        if not sizes or sizes[0] != -1:
            raise ValueError(
                f"{value.name} has shape {sizes}, whose first size is no open batch: export the"
                " model with one, or give --max-batch 0"
            )
        sizes = sizes[1:]
    dims = ", ".join(map(str, sizes))
    return f"name: {quoted(value.name)} data_type: {TYPES[tensor.elem_type]} dims: [ {dims} ]"


def quoted(text: str) -> str:
    """A string of protobuf's text format."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{escaped}"'


def external_files(model: onnx.ModelProto) -> set[str]:
    """Files beside the model that hold initializers."""
    return {
        ExternalDataInfo(tensor).location
        for tensor in model.graph.initializer
        if uses_external_data(tensor)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("repository", type=Path, metavar="REPOSITORY")
    parser.add_argument("--name", default="", help="default: the file's name")
    parser.add_argument("--max-batch", type=int, default=0, help="default: 0, no batching")
    parser.add_argument(
        "--mount", default="", help="the repository's path where Triton runs; default: as here"
    )
    chosen = parser.parse_args(arguments)
    mount = chosen.mount or str(chosen.repository.resolve())
    try:
        folder = make_repository(
            chosen.model,
            chosen.repository,
            chosen.name or chosen.model.stem,
            chosen.max_batch,
            mount.rstrip("/"),
        )
    except (ValueError, OSError, onnxbolt.OnnxboltError) as error:
        parser.exit(1, f"error: {error}\n")
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
