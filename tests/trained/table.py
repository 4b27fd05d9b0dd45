"""The results (results.json), and the table of docs/accuracy.md that is made from them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks import machine
from benchmarks.tables import with_blocks
from tests.conftest import ROOT
from tests.trained.agreement import Agreement
from tests.trained.cases import CASES, Case

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "accuracy.md"
BLOCK = "trained"
CPU = "function bodies on the CPU"

Results = Mapping[str, Mapping[str, Any]]  # by key()


def key(case: str, precision: str, place: str) -> str:
    """The results' name of a run; `place` is CPU or "kernels on " with the GPU's name."""
    return f"{case}; {precision}; {place}"


def entry(
    case: Case,
    precision: str,
    place: str,
    found: Iterable[Agreement],
    rounded: Iterable[Agreement],
) -> dict[str, Any]:
    """An entry of the results: a run, what it compared, and the same for rounding alone if anything
    is off."""
    return {
        "case": case.name,
        "precision": precision,
        "place": place,
        "commit": machine.commit(),
        "onnxruntime": onnxruntime.__version__,
        "inputs": len(case.inputs),
        "agreements": [dataclasses.asdict(one) for one in found],
        "rounded": [dataclasses.asdict(one) for one in rounded],
    }


def load(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results, {} if there are none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(results: Results, path: Path = RESULTS) -> None:
    """Write the results, in the order of their names; a half-written file is never left."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    os.replace(part, path)


def rendered(page: str, results: Results) -> str:
    """The page with a new table."""
    return with_blocks(page, lambda name: {BLOCK: table}[name](results))


def table(results: Results, cases: Sequence[Case] = CASES) -> str:
    """A row for each model, a column for each precision and place, in the order of their
    names."""
    columns = sorted({(one["precision"], one["place"]) for one in results.values()})
    heading = ["model", "inputs", *(f"{precision}, {place}" for precision, place in columns)]
    rows = []
    for case in cases:
        runs = [results.get(key(case.name, *column)) for column in columns]
        rows.append([_linked(case), str(len(case.inputs)), *(_cell(run) for run in runs)])
    lines = [heading, ["---", "---:", *["---"] * len(columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _linked(case: Case) -> str:
    owners = dict.fromkeys("/".join(path.split("/")[:2]) for path in case.networks.values())
    links = [f"[{owner}](https://github.com/{owner})" for owner in owners]
    return f"{case.name} ({', '.join(links)})"


def _cell(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "not run"
    both = ([Agreement(**one) for one in run[name]] for name in ("agreements", "rounded"))
    return "; ".join(in_words(*both))


def off(found: Iterable[Agreement], rounded: Iterable[Agreement]) -> list[Agreement]:
    """The agreements that do not hold and are worse than rounding alone explains."""
    alone = {one.kind: one for one in rounded}
    return [
        one
        for one in found
        if not one.holds and not (one.kind in alone and one.is_rounding(alone[one.kind]))
    ]


def in_words(found: Sequence[Agreement], rounded: Sequence[Agreement]) -> list[str]:
    """Each agreement as the table has it."""
    alone, faults = {one.kind: one for one in rounded}, off(found, rounded)
    words = []
    for one in found:
        ending = "" if one.number == 1 else "es" if one.kind.endswith("x") else "s"
        text = f"{one.number} {one.kind}{ending}: "
        text += "same" if one.least is None and one.holds else _iou(one)
        if not one.holds:
            text += f", {one.number - one.agreeing} off"
            text += (
                " **(a fault)**" if one in faults else f" (rounding alone: {_iou(alone[one.kind])})"
            )
        words.append(text)
    return words


def _iou(one: Agreement) -> str:
    """The least IoU, rounded down so that 0.98 is never shown for less."""
    return "different" if one.least is None else f"IoU {int(one.least * 1e4) / 1e4:.4f}"
