"""A report as text, JSON and Markdown."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from onnxbolt.graph.bodies import located
from onnxbolt.report.data import Fused, ReportData
from onnxbolt.report.markdown import code, plain, table
from onnxbolt.report.tuning import sections as tuning_sections
from onnxbolt.report.verification import as_dict, rows_as_table
from onnxbolt.terminal import add_row, literal_console, width

if TYPE_CHECKING:
    from onnxbolt.candidates import Refusal
    from onnxbolt.plan.choose import Totals
    from onnxbolt.plan.verdicts import Verdict
    from onnxbolt.quantize.scales import Quantization
    from onnxbolt.tune.summary import Tuning

WIDTH = 140  # columns of a text that is not written to a terminal
SHOWN = 12  # rows of each table in the text, which also has the last row; files have all rows
PRECISIONS = {
    "fp16": (
        "precision fp16: weights and compute in fp16, accumulation and epilogues in fp32; graph"
        " inputs and outputs keep their types"
    ),
    "bf16": (
        "precision bf16: weights and compute in bf16, accumulation and epilogues in fp32; graph"
        " inputs and outputs keep their types"
    ),
    "keep": (
        "precision keep: every type as in the model; fp32 is multiplied as TF32 on tensor cores"
    ),
}
_TIMES = "sm_{} us", "ORT, sm_{} us", "sm_{} gain"
Lines = list[tuple[Any, ...]]
Section = tuple[str, tuple[str, ...], Lines]
Shown = Callable[[str], str]


def text(report: ReportData) -> str:
    """The report for a terminal; nodes are grouped, so that those of a large model fit a screen."""
    verification = (
        report.verification.text(width(WIDTH)) if report.verification else _not_verified(report)
    )
    sections = _sections(report, str)
    return "\n".join(filter(None, [_printed(sections, SHOWN), gain(report), verification]))


def _not_verified(report: ReportData) -> str:
    return "not verified: only metadata was added" if report.passed_through else "not verified"


def tuning_text(tuning: Tuning) -> str:
    """The text that `onnxbolt tune` prints: every task."""
    return _printed(tuning_sections(tuning, str), len(tuning.tasks))


def _printed(sections: Iterable[Section], shown: int) -> str:
    """Titles and tables; a table of more than `shown` rows is cut to its first ones and its last
    one."""
    console = literal_console(width(WIDTH))
    with console.capture() as captured:
        for title, header, rows in sections:
            console.print(title, soft_wrap=True)  # paths stay whole
            if rows:
                console.print(_table(header, [*rows[:shown], *rows[shown:][-1:]]))
            if len(rows) > shown + 1:
                console.print(f"  and {len(rows) - shown - 1} more groups: --report x.md lists all")
    return captured.get().rstrip()


def markdown(report: ReportData) -> str:
    """The text's tables with all their rows, and tables of all fused nodes and regions. No name is
    read as Markdown."""
    parts = [f"# onnxbolt {report.version}"]
    sections = (*_sections(report, code), _all_fused(report), _regions(report.regions, code))
    for title, header, rows in sections:
        parts.append(title)
        if rows:
            parts.append(table(header, rows))
    parts += filter(None, [gain(report)])
    found = report.verification
    parts += (
        ["## Verification", rows_as_table(found), *map(code, found.notes), found.verdict]
        if found
        else [_not_verified(report)]
    )
    return "\n\n".join(parts)


def gain(report: ReportData) -> str:
    """One line on the speed-up of the whole model, measured if that was done, else predicted;
    empty if there is neither."""
    if (speed := report.speed) is not None:
        return (
            "whole model, measured against ONNX Runtime's CUDA execution provider at its best:"
            f" {speed.speedup:.2f} times as fast ({speed.ours.us:.1f} us instead of"
            f" {speed.peer.us:.1f}, {speed.peer.name})"
        )
    if report.tuning and (whole := report.tuning.whole) is not None:
        return (
            "whole model, measured against ONNX Runtime's CUDA execution provider at its best:"
            f" {whole.ort_us / whole.ours_us:.2f} times as fast ({whole.ours_us:.1f} us instead of"
            f" {whole.ort_us:.1f})"
        )
    times = [
        f"{found.gain:.2f} times as fast on sm_{found.arch} ({found.ours_us:.1f} us instead of"
        f" {found.ort_us:.1f})"
        for found in report.whole
    ]
    return (
        f"whole model, predicted against ONNX Runtime's CUDA execution provider: {', '.join(times)}"
        if times
        else ""
    )


def as_json(report: ReportData) -> str:
    """The whole report, as schema.json describes it; NaN, which JSON lacks, becomes null."""
    values = dataclasses.asdict(report)
    for region, written in zip(report.regions, values["regions"], strict=True):
        written |= {"fused": region.fused, "gain": region.gain, "measured": region.measured}
    if report.speed:
        values["speed"] = report.speed.as_dict()
    if report.verification:
        values["verification"] = as_dict(report.verification)
    return json.dumps(plain(values), indent=2, sort_keys=True)


def tuning_json(tuning: Tuning) -> str:
    """`tuning` as JSON."""
    return json.dumps(plain(dataclasses.asdict(tuning)), indent=2, sort_keys=True)


def _sections(report: ReportData, shown: Shown) -> Iterable[Section]:
    """The sections of the report, each as (title, column names, rows). `shown` makes what is
    written of a text that may hold names of a model or of files."""
    if not report.passed_through:
        yield f"{PRECISIONS[report.precision]}{_runtime(report)}", (), []
    if report.quantization:
        yield from _quantized(report.quantization, shown)
    if report.original or report.optimized:
        yield (
            f"{shown(report.original) or 'a model in memory'} ->"
            f" {shown(report.optimized) or 'nothing written'}",
            (),
            [],
        )
    if report.passed_through:
        yield f"written unchanged: {shown(report.passed_through)}", (), []
        return
    if report.library_sha256:
        yield f"library: SHA-256 {report.library_sha256}", (), []
    yield (
        (
            f"fused: {len(report.fused)} nodes, {_share(report.coverage)} (--fuse {report.fuse};"
            f" {_origin(report)})"
        ),
        (
            "op type",
            "nodes",
            "FLOPs",
            *(name.format(arch) for name in _TIMES for arch in report.archs),
        ),
        _by_op(report.fused, report.archs, shown),
    )
    if report.skips:
        nodes = (
            "1 source node" if len(report.skipped) == 1 else f"{len(report.skipped)} source nodes"
        )
        yield f"skipped ({shown(report.skips)}): {nodes}", (), []
    if report.planning:
        yield _planning(report.planning), (), []
    if report.tuning:
        yield from tuning_sections(report.tuning, shown)
    if any(region.measured for region in report.regions):
        yield _regions([region for region in report.regions if region.measured], shown)
    for title, refusals in (
        ("left to ONNX Runtime", [r for r in report.refusals if not r.apart]),
        ("not merged with a neighbouring layer", [r for r in report.refusals if r.apart]),
    ):
        if refusals:
            yield (
                f"{title}: {len(refusals)}",
                ("op", "nodes", "reason", "remedy", "e.g.", "details"),
                _by_reason(refusals, shown),
            )
    if report.kept:
        yield (
            f"kept in fp32: {len(report.kept)}",
            ("op", "nodes", "reason", "e.g.", "details"),
            _kept(report, shown),
        )
    if report.shared_weights:
        title = (
            "weights stored twice, because unfused nodes also read them:"
            f" {len(report.shared_weights)}"
        )
        yield title, ("weight",), [(shown(name),) for name in report.shared_weights]
    if report.changes:
        yield "canonicalized:", ("pass",), [(shown(line),) for line in report.changes]


def _quantized(made: Quantization, shown: Shown) -> Iterable[Section]:
    found = made.scales
    balanced = f", channels of {len(found.balanced)} balanced" if found.balanced else ""
    origin = "scales of the lock file" if made.from_lock else "calibrated"
    yield (
        (
            f"quantized to {found.precision}: {len(found.scales)} tensors stored as"
            f" codes{balanced}; {origin}, {found.method} of {found.batches} batches (data"
            f" {found.data[:12]}). Error on these data, against the model of floats{_limit(made)}:"
        ),
        ("output", "relative L2"),
        [(shown(name), f"{error:.2e}") for name, error in found.errors.items()],
    )
    if found.chosen is not None:
        yield (
            f"front of time against error{_limit(made)}; products that are not in 8 bits are in"
            f" {found.floats}",
            ("8 bits", "products", "us", "error", ""),
            [
                (
                    shown(point.precision),
                    point.products,
                    f"{point.us:.1f}",
                    f"{point.error:.2e}",
                    "chosen" if point == found.chosen else "",
                )
                for point in found.points
            ],
        )
    if made.model:
        yield f"quantized model, with which the result is compared: {shown(made.model)}", (), []
    if made.left:
        groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for left in made.left:
            groups[left.op, left.reason].append(left)
        yield (
            f"left in floats: {len(made.left)} products",
            ("op", "nodes", "reason", "e.g."),
            [
                (shown(op), len(members), shown(reason), shown(members[0].node))
                for (op, reason), members in _ordered(groups)
            ],
        )


def _limit(made: Quantization) -> str:
    return "" if made.max_error is None else f", limit {made.max_error:.2e}"


def _runtime(report: ReportData) -> str:
    """Names the ONNX Runtime whose kernels decide what stays in fp32; empty for precision keep."""
    return (
        f"; what stays in fp32 follows from the CUDA kernels of ONNX Runtime {report.onnxruntime}"
        if report.onnxruntime and report.precision != "keep"
        else ""
    )


def _planning(totals: Totals) -> str:
    """The times of both plans, and how far they differ."""
    planned = f"{totals.otherwise} of {totals.scopes} parts" if totals.otherwise else "no part"
    return (
        f"planned by dynamic programming: {totals.dynamic_us:.1f} us, greedily:"
        f" {totals.greedy_us:.1f} us ({planned} of the graph planned otherwise; {totals.distinct}"
        " distinct parts)"
    )


def _share(coverage: float | None) -> str:
    return (
        "FLOPs n/a: no products or convolutions"
        if coverage is None
        else f"{coverage:.1%} of the FLOPs of all products and convolutions"
    )


def _origin(report: ReportData) -> str:
    """Says which times of fused nodes were measured, by the project as well, and which predicted,
    and by which learned cost model, if by any."""
    measured = {
        f"sm_{p.arch}" for node in report.fused for p in node.predicted if p.measured_us is not None
    }
    published = sum(any(p.published for p in node.predicted) for node in report.fused)
    before = f" (those of {published} nodes come with onnxbolt)" if published else ""
    models = sorted({p.model for node in report.fused for p in node.predicted if p.model})
    known = f", those of some kernels by cost model {', '.join(models)}" if models else ""
    return (
        f"kernels measured on {', '.join(sorted(measured))}{before}, all other times predicted"
        f"{known}"
        if measured
        else f"times are predicted{known}"
    )


def _by_op(fused: Sequence[Fused], archs: Sequence[int], shown: Shown) -> Lines:
    groups: dict[str, list[Fused]] = defaultdict(list)
    for node in fused:
        groups[node.op].append(node)
    ordered = sorted(groups.items(), key=lambda group: (-_flops(group[1]), group[0]))
    rows = [
        (op, len(nodes), _scaled(_flops(nodes)), *_times(nodes, archs))
        for op, nodes in [*((shown(op), nodes) for op, nodes in ordered), ("total", fused)]
    ]
    return rows if fused else []


def _flops(nodes: Sequence[Fused]) -> int:
    return sum(node.flops for node in nodes)


def _times(nodes: Sequence[Fused], archs: Sequence[int]) -> list[str]:
    """Per architecture: the sum of our times, then of ONNX Runtime's, then their ratio; empty for
    poolings, whose times are not predicted."""
    predicted = [[p for node in nodes for p in node.predicted if p.arch == arch] for arch in archs]
    ours = [sum(p.best_known_us for p in known) for known in predicted]
    theirs = [sum(p.ort_us for p in known) for known in predicted]
    gains = (f"{them / us:.2f}" if us else "" for us, them in zip(ours, theirs, strict=True))
    return [*(f"{us:.1f}" if us else "" for us in (*ours, *theirs)), *gains]


def _by_reason(refusals: Sequence[Refusal], shown: Shown) -> Lines:
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for refusal in refusals:
        groups[refusal.op, refusal.reason.partition(":")[0]].append(refusal)
    firsts = [(op, len(members), reason, members[0]) for (op, reason), members in _ordered(groups)]
    return [
        (
            shown(op),
            count,
            *map(shown, (reason, first.remedy, located(first.node, first.body), _details(first))),
        )
        for op, count, reason, first in firsts
    ]


def _details(refusal: Refusal) -> str:
    """The part of a reason behind its colon, and the refusal's times (whose names end in _us)."""
    numbers = [
        f"{name.removesuffix('_us')} {value:.1f} us" for name, value in refusal.values.items()
    ]
    return ", ".join([*filter(None, [refusal.reason.partition(": ")[2]]), *numbers])


def _kept(report: ReportData, shown: Shown) -> Lines:
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for kept in report.kept:
        groups[kept.op, kept.reason.partition(":")[0]].append(kept)
    return [
        (
            shown(op),
            len(members),
            shown(reason),
            shown(located(members[0].node, members[0].body)),
            shown(members[0].reason.partition(": ")[2]),
        )
        for (op, reason), members in _ordered(groups)
    ]


def _ordered(groups: dict[tuple[str, str], list[Any]]) -> list[tuple[tuple[str, str], list[Any]]]:
    """The groups, the largest first."""
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _all_fused(report: ReportData) -> Section:
    rows: Lines = []
    for node in report.fused:
        times = "; ".join(f"sm_{p.arch} {p.ours_us:.1f} / {p.ort_us:.1f}" for p in node.predicted)
        measured = "; ".join(
            f"sm_{p.arch} {p.measured_us:.1f}" for p in node.predicted if p.measured_us is not None
        )
        rows.append(
            (
                code(located(node.name, node.body)),
                code(node.op),
                code(node.tensor),
                _scaled(node.flops),
                code("; ".join(node.configs)),
                times,
                measured,
            )
        )
    header = (
        "node",
        "op type",
        "stands for",
        "FLOPs",
        "configurations",
        "us predicted, ours / ORT",
        "us measured",
    )
    return "## Fused nodes", header, rows


def _regions(regions: Sequence[Verdict], shown: Shown) -> Section:
    """Our time and ONNX Runtime's of each region on each architecture, the slowest first."""
    ordered = sorted(
        regions,
        key=lambda verdict: (-max(each.ort_us for each in verdict.comparisons), verdict.region),
    )
    times = [
        name
        for arch in (ordered[0].archs if ordered else ())
        for name in (f"sm_{arch} us", f"ORT, sm_{arch} us")
    ]
    rows: Lines = [
        (
            shown(verdict.region),
            *(f"{us:.1f}" for us in verdict.values().values()),
            f"{verdict.gain:.2f}",
            "measured" if verdict.measured else "predicted",
            "fused" if verdict.fused else "left to ONNX Runtime",
        )
        for verdict in ordered
    ]
    return f"regions compared: {len(rows)}", ("region", *times, "gain", "times", "decision"), rows


def _scaled(count: int) -> str:
    """A count of FLOPs with a unit prefix, "3.02 G"; empty for 0."""
    power = min(int(math.log10(count)) // 3, 4) if count else 0
    return f"{count / 1000**power:.3g} {' KMGT'[power]}".strip() if count else ""


def _table(header: Sequence[str], rows: Lines) -> Table:
    """A table without the columns whose cells are all empty."""
    used = [column for column in range(len(header)) if any(str(row[column]) for row in rows)]
    table = Table(*(header[column] for column in used), box=None)
    for row in rows:
        add_row(table, *(str(row[column]) for column in used))
    return table
