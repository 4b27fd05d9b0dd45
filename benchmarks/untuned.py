"""Plans that are made without a GPU against the tuned plan, fp16: by the formulas, and by a cost
model that has not seen the model's problems. All three run in turns in one process on one GPU.

    # all of MODELS: plan, tune, measure, write results/untuned-<gpu>.json
    python -m benchmarks.untuned --tune --cache DIR
    python -m benchmarks.untuned resnet50-32 vit_base-1 --tune --budget 45s --append
    # a look, without a GPU; the third plan is predicted, too
    python -m benchmarks.untuned dlrm_mlp-2048 --provider cpu --quick

Both plans are made in processes that see no GPU and hence no earlier measurements, while the third
one is tuned. Before that, a cost model is learned from the measurements of other problems
(benchmarks/collect.py), for which LightGBM is needed. Names are those of benchmarks/plans.py. A
row's ratio is the time of the plan by the learned model, divided by that of the tuned plan. "other
nodes" are fused nodes of the tuned plan that the other one lacks, or has with other kernels.
"decisions" are those between fusing a region and leaving it to ONNX Runtime, as far as the tuner
compared the same region; wrong ones cost more than 5% of its time.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks import plans
from benchmarks.common import Row, check_names
from benchmarks.end_to_end import FULL, QUICK, device_ratio, in_turns, measure_all, optimized, told
from benchmarks.plans import library_of
from benchmarks.predictions import FORMULA, LEARNED, read, unlike
from benchmarks.whole_models import (
    add_options,
    add_tuning_options,
    checked_error,
    exact_outputs,
    stream_for,
)
from onnxbolt import pipeline
from onnxbolt.archs import by_name
from onnxbolt.domains import FUSED
from onnxbolt.gpu import local_arch
from onnxbolt.options import Options
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.sessions import Source, search
from onnxbolt.tune.stage import kernel_problems
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import Tuning
from onnxbolt.tune.training import trained_on

TUNED = "tuned"
CASES = {name: case for name, case in plans.CASES.items() if not case.selects}
MODELS = (
    "resnet50-32",
    "mobilenet_v3_large-32",
    "repvgg_a0_deploy-32",
    "bert_base-32x40",
    "vit_base-32",
    "vit_base-1",
    "swin_tiny-32",
    "convnext_tiny-32",
    "dlrm_mlp-2048",
)
CLEAR = 1.05  # a decision is wrong if the other side is so many times as fast
MEASUREMENTS = Path(__file__).with_name("collection-nvidia-h200.jsonl.gz")


@dataclass(frozen=True)
class Named:
    """A case by its name, which other processes find it by."""

    name: str

    @property
    def model(self) -> str:
        return CASES[self.name].model

    @property
    def batch(self) -> int:
        return CASES[self.name].batch


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    check_names(chosen.models, CASES, parser)
    stream = stream_for(chosen, parser)

    def measure(case: Named, scratch: Path) -> Row:
        return _measure(case.name, scratch, stream, chosen)

    cases, everything = map(Named, chosen.models or MODELS), map(Named, MODELS)
    return measure_all("untuned", list(cases), list(everything), measure, chosen)


def _measure(name: str, scratch: Path, stream: Stream | None, chosen: argparse.Namespace) -> Row:
    """Raises RuntimeError for a wrong answer."""
    effort, case = QUICK if chosen.quick else FULL, CASES[name]
    sources, facts = _planned(name, scratch, stream, chosen)
    exact = case.exact(case.given())
    feeds = case.feeds(exact)
    found = {
        label: search([source], feeds, stream, effort.search_runs)
        for label, source in sources.items()
    }
    samples, device, clock_mhz = in_turns(found, None, feeds, stream, effort)
    reference = exact_outputs(exact, feeds, stream)
    errors = {label: checked_error(label, each.session, reference) for label, each in found.items()}
    tuned, formula, learned = (samples[label] for label in (TUNED, FORMULA, LEARNED))
    return Row(
        case.model,
        case.batch,
        "fp16",
        round(tuned.median, 2),
        "planned without a GPU by the learned model",
        round(learned.median, 2),
        round(learned.median / tuned.median, 4),
        spread=round(tuned.spread, 4),
        error=float(f"{max(errors.values()):.3e}"),
        clock_mhz=clock_mhz,
        config=str(found[TUNED].setting),
        values={
            "configurations": "measured" if chosen.tune else "predicted",
            "formula_us": round(formula.median, 2),
            "formula_ratio": round(formula.median / tuned.median, 4),
            **device_ratio("device_ratio", device[LEARNED], device[TUNED]),
            **device_ratio("formula_device_ratio", device[FORMULA], device[TUNED]),
            "spreads": {label: round(sample.spread, 4) for label, sample in samples.items()},
            "peer_config": str(found[LEARNED].setting),
            "formula_config": str(found[FORMULA].setting),
            **facts,
        },
    )


def _planned(
    name: str, scratch: Path, stream: Stream | None, chosen: argparse.Namespace
) -> tuple[dict[str, Source], dict[str, Any]]:
    """The model by each plan, and facts about the plans."""
    options = Options(archs=(local_arch() or "sm_90a",), fuse=chosen.fuse, verify=False)
    tunings = dict[str, Tuning]()
    by_prediction = {label: scratch / f"{label}.onnx" for label in (FORMULA, LEARNED)}
    with ProcessPoolExecutor(
        len(by_prediction), multiprocessing.get_context("spawn"), hide_gpus
    ) as pool:
        planning = pool.submit(plan, name, by_prediction[FORMULA], options)
        learning = pool.submit(
            learn_and_plan, name, by_prediction[LEARNED], options, chosen.measurements
        )
        given = CASES[name].given()
        out = scratch / f"{TUNED}.onnx"
        tuned = optimized(TUNED, given, out, stream, chosen, tunings, lock=lock_of(out))
        planning.result()
        left_out, learned_from = learning.result()
    sources = {TUNED: tuned}
    for label, path in by_prediction.items():
        sources[label] = Source(label, path.read_bytes(), library_of(path) if stream else None)
    nodes = {label: fused_nodes(source) for label, source in sources.items()}
    measured = Lock.read(lock_of(out))
    judged = {
        label: decisions(measured, Lock.read(lock_of(path)))
        for label, path in by_prediction.items()
    }
    return sources, {
        "left_out": left_out,
        "learned_from": learned_from,
        "nodes": {label: len(found) for label, found in nodes.items()},
        "other_nodes": {label: len(nodes[TUNED] - nodes[label]) for label in by_prediction},
        "decisions": {label: found for label, (found, _) in judged.items()},
        "wrong_decisions": {label: wrong for label, (_, wrong) in judged.items()},
        **({"tuning": told(tunings[TUNED])} if tunings else {}),
    }


def hide_gpus() -> None:
    """Let this process, which has not asked the driver yet, see no GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def plan(name: str, out: Path, options: Options) -> None:
    """Write the model as it is planned without a GPU, without its library."""
    given = CASES[name].given()
    pipeline.optimize(given, out, options=options, library=False, lock=lock_of(out))


def lock_of(out: Path) -> Path:
    """The lock file of a model, which has the decisions of its plan."""
    return out.with_suffix(".lock")


def learn_and_plan(name: str, out: Path, options: Options, measurements: Path) -> tuple[int, int]:
    """As `plan`, by a cost model of the measurements of other layers than the model's. Returns how
    many problems were left out, and how many others there are."""
    archs = [by_name(arch).number for arch in options.archs]
    own = set(kernel_problems(Subject.of(CASES[name].given(), options), archs))
    problems = read(measurements)
    rest = unlike(problems, own)
    model = out.with_suffix(".json")
    model.write_text(trained_on(rest, str(measurements)).text)
    plan(name, out, dataclasses.replace(options, cost_model=model))
    return len(problems) - len(rest), len(rest)


def fused_nodes(source: Source) -> set[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """The nodes of a model that have kernels of ours: what each computes, and by which kernels."""
    assert isinstance(source.model, bytes)
    return {
        (node.op_type, tuple(node.output), tuple(attribute.ints))
        for node in onnx.load_model_from_string(source.model).graph.node
        for attribute in node.attribute
        if node.domain == FUSED and attribute.name == "configs"
    }


def decisions(measured: Lock, predicted: Lock) -> tuple[int, int]:
    """How many predicted decisions on regions can be judged by measured times, and how many of them
    are wrong."""
    gains = {key: each.gain for key, each in measured.comparisons.items() if each.measured}
    fused = {key: each.fused for key, each in predicted.comparisons.items() if key in gains}
    wrong = [
        key
        for key, is_fused in fused.items()
        if (1 / gains[key] if is_fused else gains[key]) > CLEAR
    ]
    return len(fused), len(wrong)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument(
        "--measurements",
        type=Path,
        default=MEASUREMENTS,
        metavar="FILE.jsonl.gz",
        help="to learn from (default: those that come with the project)",
    )
    add_options(parser, "untuned")
    add_tuning_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
