"""Transformers from PyTorch's exporters: onnxbolt against ONNX Runtime and PyTorch, each at its
best, on one GPU, in one run.

    # optimize, tune, measure, write results/transformers-<gpu>.json
    python -m benchmarks.transformers --tune --cache CACHE
    # the models of AutoGTCO's Table I, or the parts of its Figure 7, into files of their own
    python -m benchmarks.transformers --set autogtco --tune
    python -m benchmarks.transformers --set subgraphs --tune
    # write exported/ anew: the models' graphs; needs torch, timm and transformers, but no GPU
    python -m benchmarks.transformers --export

onnxbolt is given the export that torch.onnx.export writes by default (dynamo, opset 18), and the
others in columns of their own, each with a quarter of the tuning budget. ONNX Runtime's best is the
fastest of all exports and of what onnxruntime.transformers.optimizer makes of them, with every
setting that benchmarks/end_to_end.py tries. PyTorch's best is the fastest of eager, CUDA graph and
torch.compile. Both run in turns with onnxbolt. Texts have an attention mask that leaves between
half of them and all. Errors are against the same export in fp32 without TF32.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from benchmarks.common import Row
from benchmarks.end_to_end import (
    FULL,
    PEER,
    QUICK,
    Effort,
    compared,
    facts,
    in_turns,
    measure_all,
    optimized,
)
from benchmarks.exports import (
    EXPORTERS,
    PLAIN,
    SETS,
    STORED,
    Exported,
    feeds_for,
    forms,
    widened,
    write,
)
from benchmarks.forms import FUSED, fused
from benchmarks.pytorch_peer import OF_ZOO, whole_model_on
from benchmarks.whole_models import (
    add_options,
    add_racing_options,
    error_of,
    exact_outputs,
    stream_for,
)
from onnxbolt.errors import OnnxboltError
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Found, Source, search
from onnxbolt.tune.summary import Tuning

# the other forms have nearly the same kernels, which the plain export's tuning has measured
_SHARE = 4
# values of the forms beside the plain export
_ALSO = {"dynamo, opset 23": "opset23", "TorchScript": "torchscript"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    everything = SETS[chosen.set]
    known = {target.name for target in everything}
    if unknown := chosen.models - known:
        names = ", ".join(sorted(known))
        parser.error(f"--models {','.join(sorted(unknown))}: choose from {names}")
    targets = [t for t in everything if not chosen.models or t.name in chosen.models]
    if chosen.export:
        return _export(targets, chosen.exports)
    stream = stream_for(chosen, parser)

    def measure(target: Exported, scratch: Path) -> Row:
        return _measure(target, scratch, stream, chosen)

    return measure_all(chosen.set, targets, everything, measure, chosen)


def _export(targets: Sequence[Exported], directory: Path) -> int:
    failed = 0
    for target in targets:
        for form in EXPORTERS:
            try:
                path = write(directory, target, form)
                print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
            except Exception as error:  # the exporters' errors are of many kinds
                failed += 1
                print(f"{target.name}, {form}: {type(error).__name__}: {error}"[:500], flush=True)
    return 1 if failed else 0


def _measure(
    target: Exported, scratch: Path, stream: Stream | None, chosen: argparse.Namespace
) -> Row:
    effort: Effort = QUICK if chosen.quick else FULL
    models, missing = forms(chosen.exports, target)
    if PLAIN not in models:
        raise FileNotFoundError(missing[PLAIN])
    exact = widened(models[PLAIN])
    feeds = feeds_for(exact, target)
    reference = exact_outputs(exact, feeds, stream)
    others = _fused(target, models, missing)
    tunings, found = dict[str, Tuning](), dict[str, Found]()
    name, thorough = OF_ZOO + target.subject, not chosen.quick_compile
    with whole_model_on(stream, name, feeds, chosen.compile_within, thorough) as raced:
        if not chosen.quick_compile:
            raced()  # max-autotune measures kernels: tuning would disturb it
        for form in (PLAIN, *(form for form in _ALSO if form in models and not chosen.plain)):
            try:
                source = _optimized(form, models[form], scratch, stream, chosen, tunings)
                found[form] = search([source], feeds, stream, effort.search_runs)
            except (OnnxboltError, RuntimeError) as error:
                if form == PLAIN:
                    raise
                missing[form] = f"{type(error).__name__}: {error}"[:300]
        pytorch, tried = raced()
        peers = [Source(f, model.SerializeToString()) for f, model in (models | others).items()]
        found[PEER] = search(peers, feeds, stream, effort.search_runs)
        samples, device, clock_mhz = in_turns(found, pytorch, feeds, stream, effort)
    errors = {PLAIN: error_of(found[PLAIN].session, reference)}
    row = compared(target, samples, device, found, errors, _ALSO, PLAIN)
    row.values.update(facts(chosen, tried, missing, tunings))
    return dataclasses.replace(row, clock_mhz=clock_mhz)


def _fused(
    target: Exported, models: dict[str, ModelProto], missing: dict[str, str]
) -> dict[str, ModelProto]:
    """The exports without Attention nodes, which it does not know, after
    onnxruntime.transformers.optimizer."""
    results = dict[str, ModelProto]()
    if target.transformer is None:
        return results
    for form, model in models.items():
        if EXPORTERS[form][1] >= 23:
            continue
        label = f"{FUSED}, {form}"
        try:
            results[label] = fused(widened(model), *target.transformer)
        except Exception as error:  # its fusions fail on forms that they do not know
            missing[label] = f"{type(error).__name__}: {error}"[:300]
    return results


def _optimized(
    form: str,
    model: ModelProto,
    scratch: Path,
    stream: Stream | None,
    chosen: argparse.Namespace,
    tunings: dict[str, Tuning],
) -> Source:
    """Our model; `tunings` gets the facts of its tuning."""
    out = scratch / f"{_ALSO.get(form, 'plain')}.onnx"
    shorter = chosen.tune and chosen.budget is not None and form != PLAIN
    options = {"budget": chosen.budget / _SHARE} if shorter else {}
    return optimized(form, model, out, stream, chosen, tunings, **options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--exports",
        type=Path,
        metavar="DIR",
        default=STORED,
        help="the exported models (default: %(default)s)",
    )
    parser.add_argument("--export", action="store_true", help="write them, and stop")
    parser.add_argument(
        "--models",
        type=lambda text: set(text.split(",")),
        default=set(),
        help="names with commas between (default: all of the set)",
    )
    parser.add_argument(
        "--set", choices=tuple(SETS), default="transformers", help="what to measure"
    )
    parser.add_argument("--plain", action="store_true", help="onnxbolt gets the plain export alone")
    add_options(parser, "SET")
    add_racing_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
