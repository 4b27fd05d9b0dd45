"""The page's first tab: figures, and bars of where the time goes."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.page import numbers
from onnxbolt.report.page.graphs import OURS, Links

Values = Mapping[str, Any]
BAR = 240  # width of the longest bar
_SHOWN = 12  # operators; the rest is one line


@dataclass(frozen=True)
class Figure:
    """A number with its title, and what it says in words. `state` is "good", "bad" or empty."""

    title: str
    value: str
    words: str
    state: str = ""


@dataclass(frozen=True)
class Bar:
    """The nodes of one operator: both times in microseconds, and the lengths of their bars."""

    name: str
    count: int
    ours: str
    theirs: str
    our_length: float
    their_length: float


@dataclass(frozen=True)
class Chart:
    """Bars of one architecture."""

    title: str
    bars: tuple[Bar, ...]


def figures(report: Values) -> list[Figure]:
    parts = _whole(report), _fused(report), _quantized(report), _sizes(report)
    return [*itertools.chain(*parts), _verified(report)]


def _whole(report: Values) -> Iterator[Figure]:
    measured = _measured(report)
    if measured:
        ours, theirs = measured
        yield Figure(
            "Speed-up, measured",
            numbers.ratio(theirs / (ours or 1), True),
            f"{numbers.time(ours, True)} instead of {numbers.time(theirs, True)}, ONNX Runtime's"
            f" CUDA provider at its best{_on(report)}",
        )
    for found, gpu in zip(report["whole"], report["gpus"], strict=False):
        ours, theirs = found["ours_us"], found["ort_us"]
        yield Figure(
            f"Speed-up, predicted for sm_{found['arch']}",
            numbers.ratio(theirs / (ours or 1)),
            f"{numbers.time(ours)} instead of {numbers.time(theirs)}, ONNX Runtime's CUDA provider"
            f" at its best on {gpu}",
        )


def _measured(report: Values) -> tuple[float, float] | None:
    """Both times of the whole model: as `bench` measured them, else as the tuner did."""
    speed, whole = report["speed"], (report["tuning"] or {}).get("whole")
    if speed:
        return speed["ours"]["us"], min(peer["us"] for peer in speed["peers"])
    return (whole["ours_us"], whole["ort_us"]) if whole else None


def _on(report: Values) -> str:
    return f" on {report['machine']['gpu']}" if report["machine"] else ""


def _fused(report: Values) -> Iterator[Figure]:
    covered = report["coverage"]
    share = "no products" if covered is None else f"{covered:.1%} of FLOPs"
    sources = sum(len(node["source_nodes"]) for node in report["fused"])
    yield Figure(
        "Fused", share, f"{len(report['fused'])} fused nodes replace {sources} source nodes"
    )
    if report["before"] and report["after"]:
        before, after = (len(report[side]["blocks"]) for side in ("before", "after"))
        yield Figure(
            "Nodes", f"{before} → {after}", "without constants and what is computed from them"
        )


def _quantized(report: Values) -> Iterator[Figure]:
    made = report["quantization"]
    if not made:
        return
    scales, limit = made["scales"], made["max_error"]
    # null: no number
    errors = [math.inf if error is None else error for error in scales["errors"].values()]
    worst = max(errors, default=0.0)
    within = "" if limit is None else "good" if worst <= limit else "bad"
    yield Figure(
        f"Error of {scales['precision']}",
        f"{worst:.2e}",
        f"largest relative L2 error of an output on the calibration data, against the model of"
        f" floats; {len(scales['scales'])} tensors are stored as codes",
        within,
    )


def _sizes(report: Values) -> Iterator[Figure]:
    before, after = (report[side]["bytes"] if report[side] else 0 for side in ("before", "after"))
    if before or after:
        library = report["library_bytes"]
        beside = f", and a library of {numbers.size(library)}" if library else ", without library"
        yield Figure(
            "Files", f"{numbers.size(before)} → {numbers.size(after)}", f"model and weights{beside}"
        )


def _verified(report: Values) -> Figure:
    found = report["verification"]
    if found is None:
        return Figure("Verification", "not verified", "no comparison with the original was made")
    failed = sum(not row["passed"] and not row["unjudged"] for row in found["rows"])
    word, _, rest = found["verdict"].partition(" ")
    words = f"{len(found['rows'])} comparisons, {failed} failed; {rest.lstrip(': ')}"
    return Figure("Verification", word.rstrip(":;"), words, "good" if found["passed"] else "bad")


def provenance(report: Values) -> list[str]:
    """The origin of the page's numbers: predicted or measured, the GPU, and versions."""
    gpus = [f"sm_{a} ({gpu})" for a, gpu in zip(report["archs"], report["gpus"], strict=False)]
    lines = [f"≈ marks a predicted number{' for ' + ' or '.join(gpus) if gpus else ''}."]
    machine = report["machine"]
    if machine:
        lines.append(
            f"Numbers without ≈ were measured on {machine['gpu']} ({machine['power_limit']} W) with"
            f" CUDA {machine['cuda']} and CUTLASS {machine['cutlass']}."
        )
    else:
        lines.append("No time was measured.")
    release = f", ONNX Runtime {report['onnxruntime']}" if report["onnxruntime"] else ""
    lines.append(f"onnxbolt {report['version']}{release}.")
    if report["verification"] and report["verification"]["ran"]:
        lines.append(f"Errors were measured ({report['verification']['ran']}).")
    return lines


def charts(report: Values, links: Links) -> list[Chart]:
    """The time of each operator, for each architecture."""
    return [
        Chart(f"sm_{arch}, {gpu}", tuple(_bars(report, links, place, arch)))
        for place, (arch, gpu) in enumerate(zip(report["archs"], report["gpus"], strict=False))
    ]


def _bars(report: Values, links: Links, place: int, arch: int) -> Iterator[Bar]:
    times: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    for number, block in enumerate(report["after"]["blocks"]):
        row = links.fused.get(number)
        found = next(
            (p for p in report["fused"][row]["predicted"] if p["arch"] == arch)
            if row is not None
            else iter(()),
            None,
        )
        if found is not None:
            measured = found["measured_us"]
            ours = found["ours_us"] if measured is None else measured
            times[block["op"]].append((ours, found["ort_us"], measured is not None))
        elif block["us"]:
            us = block["us"][place]
            converts = block["domain"] == OURS and row is None
            times[block["op"]].append((us, 0.0 if converts else us, False))
    sums = [(name, len(rows), *_sum(rows)) for name, rows in times.items()]
    sums = [found for found in sums if found[2] or found[3]]
    sums.sort(key=lambda found: (-max(found[2], found[3]), found[0]))
    if len(sums) > _SHOWN:
        rest = sums[_SHOWN - 1 :]
        sums = sums[: _SHOWN - 1]
        sums.append(
            (
                f"{len(rest)} other operators",
                sum(found[1] for found in rest),
                sum(found[2] for found in rest),
                sum(found[3] for found in rest),
                all(found[4] for found in rest),
            )
        )
    longest = max((max(ours, theirs) for _, _, ours, theirs, _ in sums), default=1.0)
    for name, count, ours, theirs, measured in sums:
        yield Bar(
            name,
            count,
            numbers.time(ours, measured),
            numbers.time(theirs),
            round(BAR * ours / longest, 1),
            round(BAR * theirs / longest, 1),
        )


def _sum(rows: Sequence[tuple[float, float, bool]]) -> tuple[float, float, bool]:
    """Both times of several nodes, and True if all of ours were measured."""
    return (
        sum(ours for ours, _, _ in rows),
        sum(theirs for _, theirs, _ in rows),
        all(measured for _, _, measured in rows),
    )
