"""An explanation as text, as JSON, and as SARIF, which code review tools read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxbolt.advice import findings
from onnxbolt.advice.explanation import Advice, Explanation
from onnxbolt.advice.findings import Finding
from onnxbolt.report.markdown import plain
from onnxbolt.terminal import one_line, table

_SHOWN = 3  # nodes that a line names
_SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_STATES = {
    findings.UNFUSED: "ONNX Runtime runs this node by itself",
    findings.APART: "This node is not in one kernel with its neighbour",
    findings.LAYOUT: "This node only changes a layout",
    findings.UNALIGNED: "This node's channels are padded",
}
_ADVICE = "advice"


def text(explanation: Explanation) -> str:
    """Advices first, then what was found, equal findings in one line. Names that hold line ends
    stay in their line."""
    return "\n\n".join("\n".join(map(one_line, part)) for part in _parts(explanation) if part)


def as_json(explanation: Explanation) -> str:
    """All fields; `format` tells the schema's version."""
    return json.dumps(plain(dataclasses.asdict(explanation)), indent=2, sort_keys=True)


def sarif(explanation: Explanation) -> str:
    """A SARIF 2.1.0 log of one run: a result for each finding and each advice. Nodes are logical
    locations, since a model has no lines."""
    results = [_result(explanation, *each) for each in _found(explanation)]
    used = dict.fromkeys(result["ruleId"] for result in results)
    rules = [
        {"id": rule, "shortDescription": {"text": _STATES.get(rule, _rule(rule))}} for rule in used
    ]
    driver = {"name": "onnxbolt", "version": explanation.version, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(plain(log), indent=2)


# --- text -----------------------------------------------------------------------------------------


def _parts(found: Explanation) -> Iterator[list[str]]:
    times = "kernels measured here, other times predicted" if found.measured_times else "predicted"
    yield [
        f"{found.model or 'model'}: {_ms(found.ms, found.archs)} for one run of the optimized"
        f" model, {found.precision} ({times})"
    ]
    if (measured := found.measured) is not None:
        yield [f"measured on {measured.gpu}: {measured.ms:.4f} ms, spread {measured.spread:.1%}"]
    if found.advices:
        yield ["advice:", *(line for advice in found.advices for line in _lines(advice, found))]
    else:
        yield [f"no advice: no change that was tried saves {found.threshold:.0%} of the time"]
    if found.total:
        yield ["together:", *_lines(found.total, found)]
    if found.free:
        yield [f"for less than {found.threshold:.0%} of the time:", *_lines(found.free, found)]
    if found.tried:
        yield [
            f"tried, but each saves less than {found.threshold:.0%}:",
            *(f"  {advice.words}: {_change(advice.gain)}" for advice in found.tried),
        ]
    if found.obstacles:
        yield [
            "cannot be changed:",
            *(f"  {_names(each.nodes)}: {each.words}" for each in found.obstacles),
        ]
    if found.findings:
        yield ["not fused, or not at its best:", *_table(found.findings)]


def _lines(advice: Advice, found: Explanation) -> Iterator[str]:
    yield f"  {advice.words}"
    times_after = f"{_ms(advice.after_ms, found.archs)}, {_change(advice.gain)}"
    yield f"    {times_after}; {_effect(advice)}"
    before, after = found.measured, advice.measured
    if before is not None and after is not None:
        change = _change(1 - after.ms / before.ms)
        yield f"    measured: {after.ms:.4f} ms instead of {before.ms:.4f}, {change}"
    if advice.nodes:
        yield f"    concerns {_names(advice.nodes)}"


def _effect(advice: Advice) -> str:
    retraining = "needs retraining" if advice.needs_retraining else "needs no retraining"
    return f"{retraining}; results: {advice.results}"


def _change(gain: float) -> str:
    return f"{abs(gain):.1%} {'less' if gain >= 0 else 'more'}"


def _ms(times: Sequence[float], archs: Sequence[int]) -> str:
    return ", ".join(f"{ms:.4f} ms on sm_{arch}" for ms, arch in zip(times, archs, strict=True))


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - _SHOWN
    return ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _table(found: Sequence[Finding]) -> list[str]:
    """Findings whose reasons differ in names and numbers alone, behind a colon, share a row."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in found:
        groups.setdefault((each.state, each.op, each.reason.partition(": ")[0]), []).append(each)
    rows = [
        (
            op,
            str(len(members)),
            members[0].reason if len({each.reason for each in members}) == 1 else general,
            members[0].remedy,
            ", ".join(dict.fromkeys(key for each in members for key in each.advices)),
            members[0].node,
        )
        for (_, op, general), members in groups.items()
    ]
    header = "op", "nodes", "reason", "remedy", "advice", "e.g."
    return table(header, (tuple(map(one_line, row)) for row in rows)).splitlines()


# --- SARIF ----------------------------------------------------------------------------------------


def _rule(rule: str) -> str:
    return f"A change of the kind {rule.partition('/')[2]} makes the model faster"


def _found(explanation: Explanation) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The rule, the message and the nodes of each result."""
    for finding in explanation.findings:
        remedy = f". Remedy: {finding.remedy}" if finding.remedy else ""
        yield finding.state, f"{finding.op}: {finding.reason}{remedy}", [finding.node]
    for advice in explanation.advices:
        message = (
            f"{advice.words}: {_ms(advice.after_ms, explanation.archs)} instead of"
            f" {_ms(advice.before_ms, explanation.archs)}; {_effect(advice)}"
        )
        yield f"{_ADVICE}/{advice.kind}", message, advice.nodes


def _result(
    explanation: Explanation, rule: str, message: str, nodes: Sequence[str]
) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": node, "kind": "function"} for node in nodes]
    }
    if explanation.model:
        uri = Path(explanation.model).resolve().as_uri()
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}}
    advised = rule.startswith(_ADVICE)
    return {
        "ruleId": rule,
        "level": "warning" if advised else "note",
        "message": {"text": message},
        "locations": [location],
    }
