"""Transformers as PyTorch exports them: the models of tests/zoo/export in fp16, at the sizes that
are measured, stored without weights.

`write` needs torch, timm and transformers, but no GPU; `forms` reads what it wrote. Weights are
drawn again from their seeds, so that PyTorch's answers are no export's: only its time is compared.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from tests.zoo.materialize import materialize

PLAIN = "dynamo, opset 18"  # torch.onnx.export's default
EXPORTERS = {PLAIN: ("dynamo", 18), "dynamo, opset 23": ("dynamo", 23), "TorchScript": ("ts", 17)}
_SUFFIX = ".onnx.xz"
STORED = Path(__file__).with_name("exported")


@dataclass(frozen=True)
class Exported:
    """A model of tests/zoo/export/subjects.py at a batch, and texts at a length in tokens; `mask`:
    texts have an attention mask. `transformer` is onnxruntime.transformers' name for its kind, with
    its heads and its width."""

    subject: str
    batch: int
    length: int = 0
    mask: bool = False
    transformer: tuple[str, int, int] | None = None

    @property
    def model(self) -> str:
        return f"{self.subject}, {self.length} tokens" if self.length else self.subject

    @property
    def name(self) -> str:
        sizes = [str(size) for size in (self.batch, self.length) if size]
        return f"{self.subject}-{'x'.join(sizes)}"

    @property
    def sizes(self) -> dict[str, int]:
        """Values of the symbolic dimensions."""
        return {"batch": self.batch, "sequence": self.length}


TARGETS = (
    Exported("vit_base", 32, transformer=("vit", 12, 768)),
    Exported("vit_base", 1, transformer=("vit", 12, 768)),
    Exported("bert_base", 32, 40, mask=True, transformer=("bert", 12, 768)),
    Exported("bert_large", 32, 512, mask=True, transformer=("bert", 16, 1024)),
    Exported("swin_tiny", 32),
    Exported("convnext_tiny", 32),
    Exported("segformer_b0", 4),
    Exported("whisper_small_encoder", 4),
    Exported("gpt2", 4, 1024, transformer=("gpt2", 12, 768)),
    Exported("detr_r50_e6", 1),
    Exported("setr_naive", 1),
)
# AutoGTCO's Table I, beside the models of TARGETS that stand in it
AUTOGTCO = (
    Exported("detr_r50_e3", 1),
    Exported("detr_r50_e12", 1),
    Exported("setr_naive_base", 1),
    Exported("setr_pup", 1),
    Exported("vit_large", 1, transformer=("vit", 16, 1024)),
    Exported("vit_huge", 1, transformer=("vit", 16, 1280)),
)
# its Figure 7
SUBGRAPHS = (Exported("detr_mha", 1), Exported("detr_encoder", 1), Exported("detr_decoder", 1))
# by the name of their results
SETS = {"transformers": TARGETS, "autogtco": AUTOGTCO, "subgraphs": SUBGRAPHS}
BY_NAME = {target.name: target for targets in SETS.values() for target in targets}


def path_of(directory: Path, target: Exported, form: str) -> Path:
    """The file of an export."""
    exporter, opset = EXPORTERS[form]
    return directory / f"{target.name}.{exporter}{opset}{_SUFFIX}"


def write(directory: Path, target: Exported, form: str) -> Path:
    """Export the model with scaled_dot_product_attention, and store it in `directory`."""
    from tests.zoo.export.__main__ import exported
    from tests.zoo.export.forms import Form
    from tests.zoo.export.subjects import SUBJECTS

    subject, (exporter, opset) = SUBJECTS[target.subject], EXPORTERS[form]
    attention = "sdpa" if any(f.attention for f in subject.forms) else ""
    # TorchScript runs the model: at the exporter's own batch, and the sizes are set afterwards
    traced = exporter == "ts"
    model = exported(
        subject,
        Form(exporter, opset, attention, target.mask, dynamic=traced),
        {} if traced else target.sizes,
        half=True,
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = path_of(directory, target, form)
    path.write_bytes(lzma.compress(fixed(model, target.sizes).SerializeToString()))
    return path


def forms(directory: Path, target: Exported) -> tuple[dict[str, ModelProto], dict[str, str]]:
    """The exports of a model with weights, and why one is missing."""
    found, missing = dict[str, ModelProto](), dict[str, str]()
    for form in EXPORTERS:
        try:
            found[form] = load(directory, target, form)
        except FileNotFoundError:
            missing[form] = f"{path_of(directory, target, form).name} is not in {directory}"
    return found, missing


def load(directory: Path, target: Exported, form: str = PLAIN) -> ModelProto:
    """One export of a model with weights. Raises FileNotFoundError."""
    stored = path_of(directory, target, form).read_bytes()
    return materialize(onnx.load_model_from_string(lzma.decompress(stored)))


def fixed(model: ModelProto, sizes: Mapping[str, int]) -> ModelProto:
    """`model` with values in place of the symbolic dimensions of inputs and outputs."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    del model.graph.value_info[:]
    return model


def widened(model: ModelProto) -> ModelProto:
    """The same model in fp32: the exact answers for its weights."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT16:
            kind.elem_type = TensorProto.FLOAT
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
    return wide


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def feeds_for(model: ModelProto, target: Exported) -> dict[str, np.ndarray]:
    """Seeded inputs of the model in fp32. An attention mask leaves between half of a text and all
    of it."""
    rng, feeds = np.random.default_rng(0), dict[str, np.ndarray]()
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type != TensorProto.INT64:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        elif "mask" in value.name:
            lengths = rng.integers(target.length // 2, target.length, target.batch, endpoint=True)
            feeds[value.name] = (np.arange(target.length) < lengths[:, None]).astype(np.int64)
        else:
            feeds[value.name] = rng.integers(1, 1000, shape)
    return feeds
