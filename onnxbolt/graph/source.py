"""Opens the source model: reads it, checks that it can be used, inlines its functions, and names it
as the cause of a failure if it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import ModelProto, TensorProto

from onnxbolt import extra_ops
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.importer import all_tensors, check_versions, load_model
from onnxbolt.graph.inlining import inlined, with_inner
from onnxbolt.graph.sizes import without_unknown
from onnxbolt.graph.weights import complete

Source: TypeAlias = "str | Path | ModelProto"


@contextmanager
def opened(source: Source) -> Iterator[ModelProto]:
    """The source model with its data, ready for the stages.

    Raises InputError where it cannot be used. A stage's unexpected failure becomes an InputError as
    well if ONNX Runtime and onnx.checker refuse the model: checking every model beforehand would
    take longer than most stages, and the checker turns down much that runs.
    """
    model = _read(source)
    try:
        yield model
    except OnnxboltError:
        raise
    except Exception as error:
        whole = complete(model, {})
        if not _loads(whole) and (fault := _fault(whole)):
            raise InputError(f"the model is not valid ONNX: {fault}; export it again") from error
        raise


def _read(source: Source) -> ModelProto:
    if isinstance(source, ModelProto):
        check_versions(source)
        _require_data(source)
        model = without_unknown(source)
    else:
        model = load_model(Path(source))
    if any(node.domain == FUSED_DOMAIN for node in with_inner(model.graph.node)):
        raise InputError(
            "the model has been optimized by onnxbolt already: optimize its original instead"
        )
    try:
        return inlined(model)
    except onnx.checker.ValidationError as error:  # a function that calls itself
        raise InputError(
            f"the model's functions cannot be inlined: {_line(error)}; export it again"
        ) from error


def _require_data(model: ModelProto) -> None:
    outside = next(
        (
            tensor.name
            for tensor in model.graph.initializer
            if onnx.external_data_helper.uses_external_data(tensor)
        ),
        None,
    )
    if outside is not None:
        raise InputError(
            f"tensor {outside!r} has its data in an external file, which cannot be found for"
            " a model in memory: pass the model's path, or load the model with its external"
            " data"
        )


def _fault(model: ModelProto) -> str:
    """The model's fault in one line; empty if onnx.checker finds none (it checks models of up to 2
    GiB)."""
    # the checker begins with trifles, like an output whose shape is not declared
    if damaged := _damaged_tensor(model):
        return damaged
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return _line(error)
    except ValueError:
        return ""
    return ""


def _damaged_tensor(model: ModelProto) -> str:
    """The first tensor whose data do not fit its type and shape."""
    kinds = {number: name for name, number in TensorProto.DataType.items()}
    for tensor in all_tensors(model):
        if tensor.data_type == TensorProto.STRING or onnx.external_data_helper.uses_external_data(
            tensor
        ):
            continue
        try:
            onnx.numpy_helper.to_array(tensor)
        except (KeyError, TypeError, ValueError) as error:
            kind = kinds.get(tensor.data_type, tensor.data_type)
            held = f"{len(tensor.raw_data)} bytes" if tensor.HasField("raw_data") else "other data"
            return (
                f"tensor {tensor.name!r} of type {kind} and shape {list(tensor.dims)} has {held}:"
                f" {_line(error)}"
            )
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _loads(model: ModelProto) -> bool:
    """True if ONNX Runtime is installed and loads the model."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # some crash (runtime.py: keep_channels)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        extra_ops.register(options)
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        # ONNX Runtime's classes are not public; another failure is being handled here already
        return False
    return True
