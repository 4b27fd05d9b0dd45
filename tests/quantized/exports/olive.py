"""Olive's passes for static quantization, which call onnxruntime.quantization behind its
preprocessing.

    python -m tests.quantized.exports.olive

Needs torch==2.13.0, olive-ai, onnxruntime and requests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from olive.data.registry import Registry
from olive.workflows import run

from tests.quantized.exports import store

FORMS: dict[str, dict[str, Any]] = {
    "qdq": {
        "quant_format": "QDQ",
        "precision": "int8",
        "activation_type": "uint8",
        "per_channel": True,
    },
    "qoperator": {"quant_format": "QOperator", "precision": "uint8", "activation_type": "uint8"},
}


class _Samples:
    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
        return iter([({"x": torch.from_numpy(x)}, 0) for x in store.samples(self._name)])


@Registry.register_dataset()  # type: ignore[untyped-decorator]
def no_dataset(**_: Any) -> list[int]:
    """The samples come from the loader."""
    return [0]


@Registry.register_dataloader()  # type: ignore[untyped-decorator]
def samples_loader(dataset: Any, name: str, **_: Any) -> _Samples:
    """The samples of a model."""
    return _Samples(name)


def _config(name: str, form: str, folder: str) -> dict[str, Any]:
    data = {
        "name": "data",
        "type": "DataContainer",
        "load_dataset_config": {"type": "no_dataset"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"type": "samples_loader", "params": {"name": name}},
    }
    quantization = {"type": "OnnxStaticQuantization", "data_config": "data", **FORMS[form]}
    return {
        "input_model": {"type": "OnnxModel", "model_path": str(store.floats(name))},
        "data_configs": [data],
        "passes": {"quantization": quantization},
        "output_dir": f"{folder}/out",
        "cache_dir": f"{folder}/cache",
    }


def main() -> None:
    for name in store.SHAPES:
        for form in FORMS:
            with tempfile.TemporaryDirectory() as folder:
                run(_config(name, form, folder))
                (made,) = Path(folder, "out").rglob("*.onnx")
                store.write(made, f"{name}.olive.{form}")
    store.tell("olive", "olive-ai", "onnxruntime", "onnx")


if __name__ == "__main__":
    main()
