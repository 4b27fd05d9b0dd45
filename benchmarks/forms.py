"""The forms in which a transformer can be given to ONNX Runtime: its speed depends on them, so the
best form counts.

The plain export is models/'s builder, in the node forms of PyTorch's exporters at opset 17.
onnxruntime.transformers.optimizer makes its own nodes of it. PyTorch itself exports its module of
the same architecture (benchmarks/pytorch.py) at opset 18, and at opset 23, which has Attention.
PyTorch's weights are its own, seeded: that form's answers are no other form's. The nodes of
convolutional networks and recommenders are the same from either source, and are measured once.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from benchmarks.targets import Target

PLAIN, FUSED = "plain export", "onnxruntime.transformers"
OPSETS = {"PyTorch's export, opset 18": 18, "PyTorch's export, opset 23": 23}
_EXPORT_SECONDS = 150.0


def fused_by_onnxruntime(target: Target, exact: onnx.ModelProto) -> dict[str, onnx.ModelProto]:
    """The transformer after onnxruntime.transformers.optimizer, in fp16; nothing for other
    models."""
    if not target.transformer:
        return {}
    return {FUSED: fused(exact, target.transformer, 12, 768)}


def fused(exact: onnx.ModelProto, kind: str, heads: int, width: int) -> onnx.ModelProto:
    """An fp32 model of `kind` after onnxruntime.transformers.optimizer, in fp16."""
    from onnxruntime.transformers import optimizer

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "fp32.onnx"
        onnx.save(exact, path)
        model = optimizer.optimize_model(
            str(path),
            model_type=kind,
            num_heads=heads,
            hidden_size=width,
            opt_level=0,
            use_gpu=True,
        )
    model.convert_float_to_float16(keep_io_types=False)
    return model.model


def exported_by_pytorch(
    target: Target, feeds: Mapping[str, Any], scratch: Path
) -> tuple[dict[str, onnx.ModelProto], dict[str, str]]:
    """PyTorch's own exports of a transformer in fp16, and why one is missing; each in a process
    of its own, since PyTorch's CUDA libraries may be of other versions than ONNX Runtime's."""
    processes = (
        {form: _Export(target.model, feeds, opset, scratch) for form, opset in OPSETS.items()}
        if target.transformer
        else {}
    )
    answers = {form: process.answer() for form, process in processes.items()}
    found = {
        form: answer for form, answer in answers.items() if isinstance(answer, onnx.ModelProto)
    }
    return found, {form: answer for form, answer in answers.items() if isinstance(answer, str)}


class _Export:
    """An export that is running."""

    def __init__(self, model: str, feeds: Mapping[str, Any], opset: int, scratch: Path) -> None:
        self._path, self._said = scratch / f"opset{opset}.onnx", scratch / f"opset{opset}.txt"
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_export, args=(model, dict(feeds), opset, self._path, self._said)
        )
        self._process.start()

    def answer(self) -> onnx.ModelProto | str:
        """The exported model, or the reason why there is none."""
        self._process.join(_EXPORT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            return f"not within {_EXPORT_SECONDS:g} s"
        if self._process.exitcode == 0 and self._path.exists():
            return onnx.load(self._path)
        return (
            self._said.read_text()
            if self._said.exists()
            else f"the export ended with {self._process.exitcode}"
        )


def _export(model: str, feeds: Mapping[str, Any], opset: int, path: Path, said: Path) -> None:
    try:
        from benchmarks.pytorch import export

        export(model, feeds, opset, path)
    except Exception as error:  # any failure of PyTorch's exporter: the row has other forms
        said.write_text(f"{type(error).__name__}: {error}"[:300])
        raise
