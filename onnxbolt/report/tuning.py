"""What tuning did, as tables of the report and of `onnxbolt tune`."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxbolt.tune.summary import Tuning

Section = tuple[str, tuple[str, ...], list[tuple[Any, ...]]]
_ENDS = {"done": "nothing more was worth trying", "budget": "the budget is spent", "interrupt": "interrupted"}


def sections(tuning: Tuning) -> Iterator[Section]:
    """(title, column names, rows): the tasks with the times before and after, then how good the prediction was."""
    title = (f"tuned: {len(tuning.tasks)} problems in {tuning.seconds:.0f} s, {tuning.trials} measurements and {tuning.kernels} kernels "
             f"now, the others remembered; {_ENDS[tuning.ended_by]}")
    header = ("problem", "nodes", "tried", "failed", "us, predicted choice", "us, best", "faster by", "TFLOP/s", "configuration")
    yield title, header, [
        (task.name, task.occurrences, task.tried, task.failed, f"{task.first_us:.1f}", f"{task.best_us:.1f}", f"{task.regret - 1:.1%}",
         f"{task.best_tflops:.1f}", task.config)
        for task in tuning.tasks
    ]
    if tuning.quality:
        columns = ("kind", "problems", "predicted choice / best (geometric mean)", "rank correlation (Spearman, mean)")
        yield "prediction:", columns, [
            (q.kind, q.tasks, f"{q.regret:.3f}", "" if q.rank_correlation is None else f"{q.rank_correlation:.2f}") for q in tuning.quality
        ]
