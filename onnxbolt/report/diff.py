"""The differences between two reports: of the model, what is fused, choices, times and errors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnxbolt.graph.bodies import located
from onnxbolt.report.markdown import code, plain, table
from onnxbolt.terminal import one_line
from onnxbolt.terminal import table as text_table

FORMAT = 1
_NOISE = 0.01  # times that differ by less are the same
# fields of a report that say what it is about
_ABOUT = {
    "original": "original",
    "optimized": "optimized model",
    "version": "onnxbolt",
    "precision": "precision",
    "fuse": "--fuse",
    "archs": "architectures",
    "onnxruntime": "ONNX Runtime",
    "digest": "digest of the library",
    "skips": "skipped",
    "coverage": "share of FLOPs that is fused",
    "library_bytes": "bytes of the library",
}
Values = Mapping[str, Any]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A value that differs; one that is missing is None."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Difference:
    """All changes. Times are in microseconds, each with the word "measured" or "predicted"."""

    about: tuple[Change, ...]  # the model, the options, versions and sizes
    whole: tuple[Change, ...]  # times of the whole model
    nodes: tuple[Change, ...]  # rules of fused nodes, by the tensor that a node stands for
    choices: tuple[Change, ...]  # configurations, and what was left to ONNX Runtime
    times: tuple[Change, ...]  # fused nodes', those that changed most first
    errors: tuple[Change, ...]  # verdicts, and errors as parts of their limits

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        return not any(getattr(self, field.name) for field in dataclasses.fields(self))

    def json(self) -> str:
        """All changes as JSON, keys sorted."""
        values = {"format": FORMAT, "same": self.same, **dataclasses.asdict(self)}
        return json.dumps(plain(values), indent=2, sort_keys=True)

    def text(self) -> str:
        """A table for each kind of change."""
        return self._written(lambda title: title, text_table, one_line)

    def markdown(self) -> str:
        """The same as Markdown."""
        return self._written(
            lambda title: f"## {title}", lambda *found: f"\n{table(*found)}\n", code
        )

    def _written(self, titled: Any, tabled: Any, shown: Callable[[str], str]) -> str:
        """`shown` makes a cell of a text, which may hold names of a model."""
        if self.same:
            return "no differences"
        parts = []
        for field in dataclasses.fields(self):
            changes = getattr(self, field.name)
            if changes:
                rows = [
                    tuple(map(shown, (c.what, _word(c.before), _word(c.after)))) for c in changes
                ]
                parts.append(titled(f"{_TITLES[field.name]}: {len(changes)}"))
                parts.append(tabled(("", "before", "after"), rows))
        return "\n".join(parts)


_TITLES = {
    "about": "model, options and versions",
    "whole": "whole model",
    "nodes": "fused nodes",
    "choices": "choices (what a lock file holds)",
    "times": "times of fused nodes",
    "errors": "errors",
}


def difference(before: Values, after: Values) -> Difference:
    """The differences between two reports that were read."""
    return Difference(
        tuple(_changes(_about(before), _about(after))),
        tuple(_times(_whole(before), _whole(after))),
        tuple(_changes(_rules(before), _rules(after))),
        tuple(_changes(_choices(before), _choices(after))),
        tuple(_times(_node_times(before), _node_times(after))),
        tuple(_errors(before, after)),
    )


def _word(value: Any) -> str:
    return "–" if value is None else str(value)


def _changes(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> Iterator[Change]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield Change(" ".join(filter(None, key)), old, new)


# --- the compared values --------------------------------------------------------------------------


def _about(report: Values) -> dict[Key, Any]:
    found: dict[Key, Any] = {(title,): report[name] or None for name, title in _ABOUT.items()}
    if report["coverage"] is not None:
        found[_ABOUT["coverage"],] = f"{report['coverage']:.1%}"
    found["measured on",] = report["machine"] and report["machine"]["gpu"]
    for side in ("before", "after"):
        drawing = report[side] or {"blocks": (), "bytes": 0}
        found[f"nodes {side}",] = len(drawing["blocks"])
        found[f"bytes of the model {side}",] = drawing["bytes"]
    return found


def _rules(report: Values) -> dict[Key, str]:
    return {
        (located(node["tensor"] or node["name"], node["body"]),): node["rule"]
        for node in report["fused"]
    }


def _choices(report: Values) -> dict[Key, Any]:
    found: dict[Key, Any] = {
        (located(node["tensor"] or node["name"], node["body"]), f"kernel {number}"): config
        for node in report["fused"]
        for number, config in enumerate(node["configs"], 1)
    }
    for region in report["regions"]:
        found["region", region["region"]] = "fused" if region["fused"] else "left to ONNX Runtime"
    for refusal in report["refusals"]:
        found["not fused:", located(refusal["node"], refusal["body"])] = refusal["reason"]
    for kept in report["kept"]:
        found["kept in fp32:", located(kept["node"], kept["body"])] = kept["reason"]
    return found


@dataclass(frozen=True)
class _Time:
    us: float
    measured: bool

    def __str__(self) -> str:
        return f"{self.us:.2f} us {'measured' if self.measured else 'predicted'}"


def _whole(report: Values) -> dict[Key, _Time]:
    found: dict[Key, _Time] = {}
    for estimate in report["whole"]:
        arch = f"sm_{estimate['arch']}"
        found["onnxbolt,", arch] = _Time(estimate["ours_us"], False)
        found["ONNX Runtime,", arch] = _Time(estimate["ort_us"], False)
    if report["speed"]:
        peers = report["speed"]["peers"]
        found["onnxbolt,", "by bench"] = _Time(report["speed"]["ours"]["us"], True)
        found["ONNX Runtime,", "by bench"] = _Time(min(peer["us"] for peer in peers), True)
    measured = (report["tuning"] or {}).get("whole")
    if measured:
        found["onnxbolt,", "by the tuner"] = _Time(measured["ours_us"], True)
        found["ONNX Runtime,", "by the tuner"] = _Time(measured["ort_us"], True)
    return found


def _node_times(report: Values) -> dict[Key, _Time]:
    return {
        (located(node["tensor"] or node["name"], node["body"]), f"sm_{found['arch']}"): (
            _Time(found["ours_us"], False)
            if found["measured_us"] is None
            else _Time(found["measured_us"], True)
        )
        for node in report["fused"]
        for found in node["predicted"]
    }


def _times(before: Mapping[Key, _Time], after: Mapping[Key, _Time]) -> list[Change]:
    """Times that differ by more than noise, the largest differences first."""
    found = []
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        both = [time.us for time in (old, new) if time is not None]
        apart = max(both) - min(both) if len(both) > 1 else max(both)
        if apart > _NOISE * max(both):
            found.append((apart, Change(" ".join(key), _words(old), _words(new))))
    return [change for _, change in sorted(found, key=lambda pair: -pair[0])]


def _words(time: _Time | None) -> str | None:
    return None if time is None else str(time)


def _errors(before: Values, after: Values) -> Iterator[Change]:
    """The verdict, and each comparison whose own verdict or error changed."""
    old, new = (_verdict(report) for report in (before, after))
    if old != new:
        yield Change("verdict", old, new)
    yield from _changes(_rows(before), _rows(after))


def _verdict(report: Values) -> str | None:
    return report["verification"] and report["verification"]["verdict"]


def _rows(report: Values) -> dict[Key, str]:
    """The verdict of each comparison with its error, rounded so that noise does not show."""
    return {
        (row["level"], located(row["name"], row["body"]), row["provider"], row["sizes"]): (
            f"{_state(row)}, error {_rounded(row['error'])} of {_rounded(row['limit'])}"
        )
        for row in (report["verification"] or {"rows": ()})["rows"]
    }


def _state(row: Values) -> str:
    return "passed" if row["passed"] else "not judged" if row["unjudged"] else "failed"


def _rounded(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"
