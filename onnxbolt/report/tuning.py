"""The results of tuning as tables, for the report and for `onnxbolt tune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onnxbolt.tune.summary import Tuning, WholeModel

Section = tuple[str, tuple[str, ...], list[tuple[Any, ...]]]
_ENDS = {
    "done": "nothing more was worth trying",
    "budget": "the budget is spent",
    "target": "the target is met",
    "interrupt": "interrupted",
}


def sections(tuning: Tuning, shown: Callable[[str], str]) -> Iterator[Section]:
    """Sections as (title, column names, rows): the tasks with the times of the predicted and the
    best choice, then the quality of the predictions. `shown` makes what is written of a text that
    may hold names of a model."""
    title = (
        f"tuned: {len(tuning.tasks)} problems in {tuning.seconds:.0f} s, with"
        f" {tuning.trials} measurements and {tuning.kernels} kernels of this run and the"
        f" rest from the cache; {_ENDS[tuning.ended_by]}"
    )
    header = (
        "problem",
        "nodes",
        "tried",
        "failed",
        "us, predicted choice",
        "us, best",
        "faster by",
        "TFLOP/s",
        "configuration",
    )
    yield (
        title,
        header,
        [
            (
                shown(task.name),
                task.occurrences,
                task.tried,
                task.failed,
                f"{task.first_us:.1f}",
                f"{task.best_us:.1f}",
                f"{task.regret - 1:.1%}",
                f"{task.best_tflops:.1f}",
                shown(task.config),
            )
            for task in tuning.tasks
        ],
    )
    if tuning.whole is not None:
        yield _whole(tuning.whole, shown), (), []
    for note in tuning.notes:
        yield shown(note), (), []
    if tuning.quality:
        columns = (
            "kind",
            "problems",
            "predicted choice / best (geometric mean)",
            "rank correlation (Spearman, mean)",
        )
        yield (
            "prediction:",
            columns,
            [
                (
                    q.kind,
                    q.tasks,
                    f"{q.regret:.3f}",
                    "" if q.rank_correlation is None else f"{q.rank_correlation:.2f}",
                )
                for q in tuning.quality
            ],
        )


def _whole(whole: WholeModel, shown: Callable[[str], str]) -> str:
    """One line with the whole model's time and ONNX Runtime's, and with the regions that were
    left to ONNX Runtime because of them."""
    line = (
        f"whole model: {whole.ours_us:.1f} us, ONNX Runtime's CUDA execution provider at its best"
        f" {whole.ort_us:.1f} us"
    )
    dropped = (
        "; left to ONNX Runtime, because the whole model is slower with them:"
        f" {shown('; '.join(whole.dropped))}"
        if whole.dropped
        else ""
    )
    return line + dropped
