"""Export the models of `subjects.py` in their forms, without weights, to tests/zoo/exports.

    python -m tests.zoo.export [--only PATTERN]... [--into FOLDER] [--seconds S]

Needs torch, torchvision, timm and transformers, but neither a network nor a GPU. A name is
MODEL.FORM, such as vit_base.dynamo18.sdpa.dynamic; patterns are of such names. Each export takes
`S` seconds at most (300). One that fails does not stop the others. Beside the graphs, versions.json
has the releases that wrote them, shapes.json the shapes with which symbolic ones were traced, and
failures.json why an exporter did not write one.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import lzma
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import onnxscript
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from tests.zoo.export.forms import Form
from tests.zoo.export.strip import stripped
from tests.zoo.export.subjects import SUBJECTS, Subject
from tests.zoo.stored import EXPORTS, FAILURES, SHAPES, SUFFIX, VERSIONS

RELEASES = {
    module.__name__: module.__version__
    for module in (onnx, onnxscript, timm, torch, torchvision, transformers)
}
_QUERIES_AND_KEYS = ("q_proj", "k_proj", "query", "key", "qkv", "in_proj", "c_attn")


class Bound(nn.Module):
    """A model that takes the inputs `names` by position, and answers one tensor."""

    def __init__(self, model: nn.Module, names: Iterable[str], result: str) -> None:
        super().__init__()
        self.model, self.names, self.result = model, tuple(names), result

    def forward(self, *inputs: Tensor) -> Tensor:
        if not self.result:
            return self.model(*inputs)
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.result)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.export", description=__doc__)
    parser.add_argument("--only", action="append", help="a pattern of names; all without")
    parser.add_argument("--into", type=Path, default=EXPORTS, help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=300, help="of one export (default 300)")
    chosen = parser.parse_args(arguments)
    chosen.into.mkdir(parents=True, exist_ok=True)
    for name, subject, form in _wanted(chosen.only or ["*"]):
        start = time.monotonic()
        try:
            with _limit(chosen.seconds):
                model = exported(subject, form)
        except Exception as error:  # the exporter's errors are of many kinds
            _record(chosen.into / FAILURES, name, _summary(error))
            print(f"{name}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            continue
        stored = lzma.compress(model.SerializeToString())
        (chosen.into / f"{name}{SUFFIX}").write_bytes(stored)
        _record(chosen.into / FAILURES, name, None)
        _record(chosen.into / VERSIONS, name, RELEASES)
        if form.dynamic:
            inputs = subject.inputs(form.mask)
            shapes = {name: [*tensor.shape] for name, tensor in inputs.items()}
            _record(chosen.into / SHAPES, name, shapes)
        print(f"{name}: {len(stored)} bytes, {time.monotonic() - start:.0f} s", flush=True)
    return 0


def _record(path: Path, name: str, value: object) -> None:
    """Replace the value of `name` in a JSON file; None removes it."""
    values = json.loads(path.read_text()) if path.exists() else {}
    kept = {key: old for key, old in values.items() if key != name}
    kept |= {} if value is None else {name: value}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _summary(error: Exception) -> str:
    """The line of an error that says what went wrong: torch's own is behind its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    begin = next((i + 1 for i, line in enumerate(lines) if "Exception summary" in line), 0)
    return f"{type(error).__name__}: {' '.join(lines[begin : begin + 2])[:300]}"


def _wanted(patterns: Sequence[str]) -> Iterator[tuple[str, Subject, Form]]:
    for model, subject in SUBJECTS.items():
        for form in subject.forms:
            name = f"{model}.{form}"
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                yield name, subject, form


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError where the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def exported(
    subject: Subject, form: Form, sizes: Mapping[str, int] | None = None, half: bool = False
) -> onnx.ModelProto:
    """The model in one form, with recipes in place of its weights.

    `sizes`: other values of the symbolic dimensions of its inputs. `half`: in fp16.
    """
    torch.manual_seed(0)
    inputs = {
        name: _resized(tensor, subject.axes[name], sizes or {})
        for name, tensor in subject.inputs(form.mask).items()
    }
    model = Bound(subject.build(form.attention), inputs, subject.result).eval()
    if half:
        model = model.half()
        inputs = {n: t.half() if t.is_floating_point() else t for n, t in inputs.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracers warn of each Python number
        _enliven(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            _EXPORTERS[form.exporter](model, inputs, subject, form, path)
            return stripped(onnx.load(path, load_external_data=False), path.parent)


def _resized(tensor: Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Tensor:
    """`tensor` repeated and cut, so that its symbolic axes have the sizes that are given."""
    for axis, name in axes.items():
        if name in sizes:
            tensor = tensor.index_select(axis, torch.arange(sizes[name]) % tensor.shape[axis])
    return tensor


def _enliven(model: nn.Module) -> None:
    """Give constant parameters other values, since an exporter or onnxbolt may leave out a gain of
    one or a bias of zero; and let queries and keys be large enough for scores that differ."""
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if not values.is_floating_point() or name.endswith("inv_freq"):
            continue
        if values.numel() > 1 and values.std() < 1e-4:
            values.copy_(values.mean().round() + 0.1 * torch.randn(values.shape))
        if values.ndim == 2 and any(word in name for word in _QUERIES_AND_KEYS):
            values.mul_(2)


def _torchscript(
    model: nn.Module, inputs: dict[str, Tensor], subject: Subject, form: Form, path: Path
) -> None:
    torch.onnx.export(
        model,
        tuple(inputs.values()),
        str(path),
        dynamo=False,
        opset_version=form.opset,
        input_names=list(inputs),
        output_names=["output"],
        dynamic_axes={name: dict(subject.axes[name]) for name in inputs} if form.dynamic else {},
    )


def _dynamo(
    model: nn.Module, inputs: dict[str, Tensor], subject: Subject, form: Form, path: Path
) -> None:
    shapes = tuple(
        {axis: torch.export.Dim(size) for axis, size in subject.axes[name].items()}
        for name in inputs
    )
    program = torch.onnx.export(
        model,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=form.opset,
        input_names=list(inputs),
        output_names=["output"],
        # all inputs come as one parameter: Bound.forward(*inputs)
        dynamic_shapes=(shapes,) if form.dynamic else None,
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=True)


_EXPORTERS: dict[str, Callable[..., None]] = {"ts": _torchscript, "dynamo": _dynamo}

if __name__ == "__main__":
    sys.exit(main())
