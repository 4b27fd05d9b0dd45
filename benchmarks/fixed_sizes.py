"""The models of benchmarks/varying.py at one fixed size each, fp16: onnxbolt against ONNX Runtime
and PyTorch, each at its best, on one GPU, in one run. ResNet-50 and BERT are left out: they have
rows in benchmarks/end_to_end.py and benchmarks/transformers.py.

    # optimize, tune, measure, write results/fixed_sizes-<gpu>.json
    python -m benchmarks.fixed_sizes --tune --cache DIR
    python -m benchmarks.fixed_sizes unet hifigan --tune --budget 30s --append
    # a look, without a GPU
    python -m benchmarks.fixed_sizes --provider cpu --quick

The sizes take the place of the symbolic dimensions in every export before anything else, so that
all sides know them. onnxbolt is given TorchScript's export in fp32. ONNX Runtime gets that export
and PyTorch's newer one, where it succeeds, in fp16 and in fp32 (with TF32), with every setting that
benchmarks/end_to_end.py tries; PyTorch gets fp16. Models that select boxes run without a CUDA
graph, since the number of boxes is known on the device alone, and their answers are not compared:
rounding may exchange some boxes. Weights and inputs are seeded; errors are against the export in
fp32 without TF32.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from benchmarks.common import Row, check_names
from benchmarks.end_to_end import (
    FULL,
    PEER,
    QUICK,
    compared,
    facts,
    in_turns,
    measure_all,
    optimized,
)
from benchmarks.exports import fixed
from benchmarks.forms import PLAIN
from benchmarks.pytorch_peer import whole_model_on
from benchmarks.varying import SUBJECTS, Shapes, Subject, feeds_of
from benchmarks.whole_models import (
    add_options,
    add_racing_options,
    checked_error,
    exact_outputs,
    stream_for,
)
from onnxbolt.precision import rounded_original
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Found, Source, search
from onnxbolt.tune.summary import Tuning
from onnxbolt.verify.feeds import graph_inputs
from tests.zoo import stored

# the form that onnxbolt is given, and the other one, by the names in benchmarks/exports.py
_GIVEN, _OTHER = "TorchScript", "dynamo, opset 18"


@dataclass(frozen=True)
class Target:
    """A model, with the shapes of its inputs."""

    subject: Subject
    shapes: Shapes
    batch: int = 1

    @property
    def model(self) -> str:
        """Its name in the results, with the shape of its first input."""
        return f"{self.subject.name}, {'x'.join(map(str, self.shapes[0]))}"

    @property
    def small(self) -> Target:
        """The same model at a size that a CPU runs quickly."""
        (shapes,) = self.subject.drawn(1, quick=True)
        return dataclasses.replace(self, shapes=shapes)

    def forms(self) -> tuple[dict[str, ModelProto], dict[str, str]]:
        """The exports in fp32 by their exporter, the one that onnxbolt is given first, and why the
        other is missing."""
        found, missing = {_GIVEN: self.given()}, dict[str, str]()
        other = f"{self.subject.name}.dynamo18.dynamic"
        if other in stored.names():
            found[_OTHER] = self._at_the_size(stored.load(other))
        else:
            missing[_OTHER] = f"{other} is not in {stored.EXPORTS.name}/"
        return found, missing

    def given(self) -> ModelProto:
        """The export that onnxbolt is given, in fp32."""
        return self._at_the_size(self.subject.graph())

    def feeds(self, model: ModelProto) -> dict[str, np.ndarray]:
        """Seeded inputs."""
        return feeds_of(model, self.shapes, 0)

    def _at_the_size(self, model: ModelProto) -> ModelProto:
        sizes = {
            dim.dim_param: size
            for value, shape in zip(graph_inputs(model), self.shapes, strict=True)
            for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True)
            if dim.dim_param
        }
        return fixed(model, sizes)


TARGETS = {
    name: Target(SUBJECTS[name], SUBJECTS[name].at(sizes))
    for name, sizes in {
        "db_text_detector": {"h": 736, "w": 1280},
        "retinanet_r50": {"h": 800, "w": 1216},
        "unet": {"h": 512, "w": 512},
        "hifigan": {"t": 256},
    }.items()
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    check_names(chosen.models, TARGETS, parser)
    targets = [TARGETS[name] for name in chosen.models or TARGETS]
    stream = stream_for(chosen, parser)

    def measure(target: Target, scratch: Path) -> Row:
        at_size = target.small if chosen.quick else target
        return _measure(at_size, scratch, stream, chosen)

    return measure_all("fixed_sizes", targets, tuple(TARGETS.values()), measure, chosen)


def _measure(
    target: Target, scratch: Path, stream: Stream | None, chosen: argparse.Namespace
) -> Row:
    """Raises RuntimeError for a wrong answer."""
    effort, subject = QUICK if chosen.quick else FULL, target.subject
    models, missing = target.forms()
    given = models[_GIVEN]
    feeds = target.feeds(given)
    capture = not subject.selects
    graphs = (False, True) if capture else (False,)
    tunings = dict[str, Tuning]()
    thorough = not chosen.quick_compile
    with whole_model_on(stream, subject.pytorch, feeds, chosen.compile_within, thorough) as raced:
        pytorch, tried = raced()  # max-autotune measures kernels: tuning would disturb it
        out = scratch / f"{subject.name}.onnx"
        source = optimized(PLAIN, given, out, stream, chosen, tunings, precision="fp16")
        found: dict[str, Found] = {
            PLAIN: search([source], feeds, stream, effort.search_runs, graphs),
            PEER: search(_peers(models, missing), feeds, stream, effort.search_runs, graphs),
        }
        samples, device, clock_mhz = in_turns(found, pytorch, feeds, stream, effort, capture)
    errors = dict[str, float]()
    if not subject.selects:
        reference = exact_outputs(given, feeds, stream)
        errors[PLAIN] = checked_error(subject.name, found[PLAIN].session, reference)
    row = compared(target, samples, device, found, errors, {})
    row.values.update(facts(chosen, tried, missing, tunings))
    return dataclasses.replace(row, clock_mhz=clock_mhz)


def _peers(models: dict[str, ModelProto], missing: dict[str, str]) -> list[Source]:
    """The models for ONNX Runtime, in fp16 first: `search` tries all settings with it. `missing`
    gets the reason where a conversion to fp16 fails."""
    sources = list[Source]()
    for precision in ("fp16", "fp32"):
        for form, model in models.items():
            label = f"{form}, {precision}"
            try:
                converted = rounded_original(model, precision)
            except Exception as error:  # exporters' forms are of many kinds
                missing[label] = f"{type(error).__name__}: {error}"[:300]
                continue
            sources.append(Source(label, converted.SerializeToString()))
    return sources


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(TARGETS)}")
    add_options(parser, "fixed_sizes")
    add_racing_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
