"""The tables of the page. A cell is a text, or [number to sort by, text]."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from onnxbolt.graph.bodies import located
from onnxbolt.report.page import numbers
from onnxbolt.report.page.graphs import OURS, Links

Values = Mapping[str, Any]
Cell = str | list[Any]
_TEXT, _WORDS, _NUMBER = "text", "words", "number"  # words: sentences, which need more width
_NOTHING: Cell = [-1, ""]


def table(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Cell]],
    side: str = "",
    places: Sequence[int | None] = (),
) -> dict[str, Any]:
    """A table as the page's script draws it, without the columns that are empty in every row.
    `places` has for each row the block that it is about, in the model before or after (`side`)."""
    kept = [at for at in range(len(columns)) if any(_shown(row[at]) for row in rows)]
    return {
        "title": title,
        "columns": [list(columns[at]) for at in kept],
        "rows": [[row[at] for at in kept] for row in rows],
        "side": side,
        "places": list(places),
    }


def _shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[1]


def nodes(report: Values, links: Links, errors: Mapping[tuple[str, str], Sequence[Values]]) -> Any:
    """Every node of the optimized model, with its time beside ONNX Runtime's and the roofline."""
    columns = [("Node", _TEXT), ("Operator", _TEXT), ("Runs as", _TEXT), ("FLOPs", _NUMBER)]
    for arch in report["archs"]:
        columns += [
            (f"sm_{arch}, µs", _NUMBER),
            ("ONNX Runtime, µs", _NUMBER),
            ("Gain", _NUMBER),
            ("Roofline, µs", _NUMBER),
            ("Of roofline", _NUMBER),
        ]
    columns += [("Error / limit", _NUMBER), ("Source nodes", _NUMBER)]
    rows = []
    for place, block in enumerate(report["after"]["blocks"]):
        row = links.fused.get(place)
        if row is None:
            rows.append(_other(report, block))
        else:
            found = errors.get((block["name"], block["body"]), ())
            rows.append(_fused(report, report["fused"][row], block, found))
    return table("Nodes", columns, rows, "after", range(len(rows)))


def _fused(report: Values, node: Values, block: Values, errors: Sequence[Values]) -> list[Cell]:
    times = {found["arch"]: found for found in node["predicted"]}
    cells: list[Cell] = [
        located(node["name"], node["body"]),
        node["op"],
        "fused node",
        [node["flops"], numbers.flops(node["flops"])],
    ]
    for place, arch in enumerate(report["archs"]):
        cells += (
            _times(times[arch])
            if arch in times
            else _plain(block["us"][place])
            if block["us"]
            else [_NOTHING] * 5
        )
    cells.append(_nearest(errors))
    return [*cells, [len(node["source_nodes"]), str(len(node["source_nodes"]))]]


def _times(found: Values) -> list[Cell]:
    measured = found["measured_us"] is not None
    ours = found["measured_us"] if measured else found["ours_us"]
    theirs, floor = found["ort_us"], found["floor_us"]
    gain, share = theirs / ours if ours else 0.0, floor / ours if ours else 0.0
    return [
        [ours, numbers.microseconds(ours, measured)],
        [theirs, numbers.microseconds(theirs)],
        [gain, numbers.ratio(gain)],
        [floor, numbers.microseconds(floor)],
        [share, f"{'' if measured else numbers.PREDICTED}{share:.0%}"],
    ]


def _plain(us: float, converts: bool = False) -> list[Cell]:
    """The cells of a node whose time is the same in ONNX Runtime, or that it does not need."""
    shown: Cell = [us, numbers.microseconds(us)]
    return [shown, _NOTHING if converts else shown, _NOTHING, _NOTHING, _NOTHING]


def _other(report: Values, block: Values) -> list[Cell]:
    converts = block["domain"] == OURS
    cells: list[Cell] = [
        located(block["name"], block["body"]),
        block["op"],
        "layout conversion" if converts else "ONNX Runtime",
        _NOTHING,
    ]
    for us in block["us"]:
        cells += _plain(us, converts)
    missing = 0 if block["us"] else 5 * len(report["archs"])
    return [*cells, *[_NOTHING] * (missing + 2)]


def errors(report: Values, links: Links) -> Any:
    """Every comparison of verification."""
    found = report["verification"]
    places = {
        (report["fused"][row]["name"], report["fused"][row]["body"]): place
        for place, row in links.fused.items()
    }
    columns = [
        ("Tensor", _TEXT),
        ("Level", _TEXT),
        ("Kind", _TEXT),
        ("On", _TEXT),
        ("Error", _NUMBER),
        ("Limit", _NUMBER),
        ("Error / limit", _NUMBER),
        ("Largest difference", _NUMBER),
        ("Verdict", _TEXT),
    ]
    rows, at = [], []
    for row in found["rows"] if found else ():
        verdict = (
            "passed"
            if row["passed"]
            else f"not judged: {row['unjudged']}"
            if row["unjudged"]
            else f"FAILED: {row['reason']}"
        )
        rows.append(
            [
                located(row["name"], row["body"]),
                row["level"],
                row["kind"],
                f"{row['provider']}, {row['sizes']}" if row["sizes"] else row["provider"],
                _error(row["error"]),
                _error(row["limit"]),
                _nearest([row]),
                _error(row["max_abs"]),
                verdict,
            ]
        )
        at.append(places.get((row["node"], row["body"])))
    return table("Comparisons", columns, rows, "after", at)


def _nearest(rows: Sequence[Values]) -> Cell:
    """The largest share of its limit that an error is; empty if no row has a verdict."""
    found = [numbers.nearness(row) for row in rows if not row["unjudged"]]
    if not found:
        return _NOTHING
    share = max(found)
    return [min(share, numbers.INFINITE), f"{share:.3f}" if share < math.inf else "not finite"]


def _error(value: float | None) -> Cell:
    return [numbers.INFINITE if value is None else value, numbers.error(value)]


def regions(report: Values) -> Any:
    """Both times of everything that was compared with ONNX Runtime."""
    columns = [("Region", _TEXT)]
    for arch in report["archs"]:
        columns += [(f"sm_{arch}, µs", _NUMBER), ("ONNX Runtime, µs", _NUMBER)]
    columns += [("Gain", _NUMBER), ("Decision", _TEXT)]
    rows = []
    for region in report["regions"]:
        by_arch = dict(zip(region["archs"], region["comparisons"], strict=True))
        cells: list[Cell] = [region["region"]]
        for arch in report["archs"]:
            found = by_arch.get(arch)
            for name in ("ours_us", "ort_us"):
                cells.append(
                    [found[name], numbers.microseconds(found[name], found["measured"])]
                    if found
                    else _NOTHING
                )
        cells.append([region["gain"], numbers.ratio(region["gain"], region["measured"])])
        rows.append([*cells, "fused" if region["fused"] else "left to ONNX Runtime"])
    return table("Compared with ONNX Runtime", columns, rows)


def refusals(report: Values) -> Any:
    """Everything that was turned down, with the reason and, where times decided, both times."""
    columns = [
        ("Node", _TEXT),
        ("Operator", _TEXT),
        ("Reason", _WORDS),
        ("Ours, µs", _NUMBER),
        ("ONNX Runtime, µs", _NUMBER),
        ("Remedy", _WORDS),
    ]
    places = {
        (block["name"], block["body"]): place
        for place, block in enumerate(report["before"]["blocks"] if report["before"] else ())
    }
    rows = []
    for refusal in report["refusals"]:
        reason = refusal["reason"]
        if refusal["apart"]:
            reason = f"not in one kernel with its neighbour: {reason}"
        measured = "measured" in reason
        rows.append(
            [
                located(refusal["node"], refusal["body"]),
                refusal["op"],
                reason,
                _named(refusal["values"], "ours_us", measured),
                _named(refusal["values"], "ort_us", measured),
                refusal["remedy"],
            ]
        )
    at = [places.get((refusal["node"], refusal["body"])) for refusal in report["refusals"]]
    return table("Turned down", columns, rows, "before", at)


def _named(values: Mapping[str, float | None], name: str, measured: bool) -> Cell:
    """The values whose names end in `name`: one, or one for each architecture."""
    found = {key: us for key, us in values.items() if key.endswith(name) and us is not None}
    shown = [
        f"{key.removesuffix(name)}{numbers.microseconds(us, measured)}" for key, us in found.items()
    ]
    return [min(found.values(), default=-1.0), ", ".join(shown)]


def kept(report: Values) -> Any:
    """Nodes that stay in fp32."""
    columns = [("Node", _TEXT), ("Operator", _TEXT), ("Reason", _WORDS)]
    rows = [[located(k["node"], k["body"]), k["op"], k["reason"]] for k in report["kept"]]
    return table("Kept in fp32", columns, rows)


def tasks(report: Values) -> Any:
    """The problems that were tuned."""
    columns = [
        ("Problem", _TEXT),
        ("Nodes", _NUMBER),
        ("Tried", _NUMBER),
        ("Failed", _NUMBER),
        ("Predicted choice, µs", _NUMBER),
        ("Best, µs", _NUMBER),
        ("Gained", _NUMBER),
        ("TFLOP/s", _NUMBER),
        ("Configuration", _WORDS),
    ]
    rows = [
        [
            task["name"],
            [task["occurrences"], str(task["occurrences"])],
            [task["tried"], str(task["tried"])],
            [task["failed"], str(task["failed"])],
            [task["first_us"], numbers.microseconds(task["first_us"], True)],
            [task["best_us"], numbers.microseconds(task["best_us"], True)],
            [task["first_us"] / (task["best_us"] or 1), _gained(task)],
            [task["best_tflops"], f"{task['best_tflops']:.1f}"],
            task["config"],
        ]
        for task in (report["tuning"] or {"tasks": ()})["tasks"]
    ]
    return table("Problems", columns, rows)


def quality(report: Values) -> Any:
    """How good predictions were."""
    columns = [
        ("Kind of problem", _TEXT),
        ("Problems", _NUMBER),
        ("Predicted choice / best", _NUMBER),
        ("Rank correlation", _NUMBER),
    ]
    rows = []
    for row in (report["tuning"] or {"quality": ()})["quality"]:
        found = row["rank_correlation"]
        rows.append(
            [
                row["kind"],
                [row["tasks"], str(row["tasks"])],
                [row["regret"], f"{row['regret']:.3f}"],
                _NOTHING if found is None else [found, f"{found:.2f}"],
            ]
        )
    return table("Quality of predictions", columns, rows)


def _gained(task: Values) -> str:
    return f"{task['first_us'] / (task['best_us'] or 1) - 1:.1%}"


def operators(report: Values) -> Any:
    """How often each operator occurs before and after."""
    before, after = (
        Counter(_operator(block) for block in (report[side] or {"blocks": ()})["blocks"])
        for side in ("before", "after")
    )
    rows: list[list[Cell]] = [
        [name, [before[name], str(before[name] or "–")], [after[name], str(after[name] or "–")]]
        for name in sorted(before.keys() | after.keys(), key=lambda name: (-before[name], name))
    ]
    return table("Operators", [("Operator", _TEXT), ("Before", _NUMBER), ("After", _NUMBER)], rows)


def _operator(block: Values) -> str:
    return f"{block['domain']}.{block['op']}" if block["domain"] else str(block["op"])
