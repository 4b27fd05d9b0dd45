"""The table of several models that one command has optimized."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.data import ReportData
from onnxbolt.report.markdown import code, plain, table
from onnxbolt.terminal import one_line
from onnxbolt.terminal import table as text_table
from onnxbolt.verify.result import Row
from onnxbolt.version import __version__

FORMAT = 1
# the words of a table for the exit codes of `optimize`
WORDS = {
    0: "ok",
    1: "error",
    3: "accuracy",
    4: "below a minimum",
    5: "lock file",
}
INTERRUPTED = 130


@dataclass(frozen=True)
class Outcome:
    """The result of one model; `code` is the exit code that it would have had by itself."""

    model: str  # its path, from the directory of all models
    code: int
    message: str  # the error, in one line; empty if there was none
    seconds: float
    report: ReportData | None  # None if the error came before there was one

    @property
    def worst_output(self) -> Row | None:
        """The output that is nearest to its limit of relative L2 errors, or beyond it."""
        found = self.report.verification if self.report else None
        rows = [row for row in found.rows if row.level == "model"] if found else []
        return max(rows, key=lambda row: row.nearness, default=None)

    @property
    def measured(self) -> tuple[float, float] | None:
        """Measured microseconds of the whole model, ours and those of ONNX Runtime at its best."""
        if self.report is None:
            return None
        if (speed := self.report.speed) is not None:
            return speed.ours.us, speed.peer.us
        whole = self.report.tuning.whole if self.report.tuning else None
        return (whole.ours_us, whole.ort_us) if whole else None


@dataclass(frozen=True)
class Several:
    """The outcomes of all models, in the order of their names."""

    outcomes: tuple[Outcome, ...]
    interrupted: bool = False  # tuning ended by an interrupt

    @property
    def code(self) -> int:
        """The worst exit code: an error is worse than a limit that was not kept, and the limit of
        accuracy is the worst of these, so it is the smallest code other than 0. If all models are
        good, it tells of an interrupt."""
        codes = {outcome.code for outcome in self.outcomes} - {0}
        return min(codes, default=INTERRUPTED if self.interrupted else 0)

    def text(self) -> str:
        """The table for a terminal, and a line that counts."""
        rows = [list(map(one_line, row)) for row in self._rows()]
        return f"{text_table(self._header, rows)}\n{self.verdict}"

    def markdown(self) -> str:
        """The table in Markdown, in which no name of a file is read as Markdown."""
        rows = [(code(name), *cells[:-1], code(cells[-1])) for name, *cells in self._rows()]
        return f"# onnxbolt {__version__}\n\n{table(self._header, rows)}\n\n{self.verdict}"

    def json(self) -> str:
        """All outcomes as JSON, keys sorted."""
        values = {
            "format": FORMAT,
            "version": __version__,
            "code": self.code,
            "models": [_as_dict(outcome) for outcome in self.outcomes],
        }
        return json.dumps(plain(values), indent=2, sort_keys=True)

    @property
    def verdict(self) -> str:
        """One line: how many models are optimized, and the geometric mean of their predicted
        gains."""
        good = [outcome for outcome in self.outcomes if outcome.code == 0]
        gains = [
            f"{_mean(found):.2f} on sm_{arch}"
            for arch in self._archs
            if (found := _gains(good, arch))
        ]
        means = f"; predicted gain, geometric mean: {', '.join(gains)}" if gains else ""
        end = "; tuning was interrupted" if self.interrupted else ""
        return f"{len(good)} of {len(self.outcomes)} models optimized{means}{end}"

    @property
    def _archs(self) -> Sequence[int]:
        return sorted(
            {whole.arch for each in self.outcomes if each.report for whole in each.report.whole}
        )

    @property
    def _header(self) -> list[str]:
        times = [
            name
            for arch in self._archs
            for name in (f"sm_{arch} us", f"ORT, sm_{arch} us", "predicted gain")
        ]
        if any(outcome.measured for outcome in self.outcomes):
            times += ["us", "ORT us", "measured gain"]
        return ["model", "result", "fused", "FLOPs", *times, "error", "of limit", "reason"]

    def _rows(self) -> Iterator[list[str]]:
        measured = any(outcome.measured for outcome in self.outcomes)
        for outcome in self.outcomes:
            report, worst = outcome.report, outcome.worst_output
            whole = {each.arch: each for each in report.whole} if report else {}
            times = [
                cell
                for arch in self._archs
                for cell in (
                    _pair(whole[arch].ours_us, whole[arch].ort_us) if arch in whole else [""] * 3
                )
            ]
            if measured:
                times += _pair(*outcome.measured) if outcome.measured else [""] * 3
            yield [
                outcome.model,
                WORDS.get(outcome.code, str(outcome.code)),
                str(len(report.fused)) if report else "",
                f"{report.coverage:.1%}" if report and report.coverage is not None else "",
                *times,
                f"{worst.error:.1e}" if worst else "",
                f"{worst.limit:.1e}" if worst else "",
                outcome.message,
            ]


def _pair(ours: float, theirs: float) -> list[str]:
    return [f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}" if ours else ""]


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    report, worst = outcome.report, outcome.worst_output
    ours, theirs = outcome.measured or (None, None)
    return {
        "model": outcome.model,
        "code": outcome.code,
        "message": outcome.message,
        "seconds": outcome.seconds,
        "fused": len(report.fused) if report else None,
        "coverage": report.coverage if report else None,
        "predicted": [
            {"arch": whole.arch, "ours_us": whole.ours_us, "ort_us": whole.ort_us}
            for whole in (report.whole if report else ())
        ],
        "measured": {"ours_us": ours, "ort_us": theirs} if outcome.measured else None,
        "output": (
            {"name": worst.name, "error": worst.error, "limit": worst.limit} if worst else None
        ),
        "verdict": report.verification.verdict if report and report.verification else None,
    }


def _gains(outcomes: Sequence[Outcome], arch: int) -> list[float]:
    reports = [outcome.report for outcome in outcomes if outcome.report]
    return [whole.gain for report in reports for whole in report.whole if whole.arch == arch]


def _mean(gains: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, gains)) / len(gains))
