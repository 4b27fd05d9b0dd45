"""The summary of a CI run in Markdown, in which names of files and tensors are data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxbolt.ci.comparing import Compared
from onnxbolt.ci.differences import ErrorChange, TimeChange
from onnxbolt.report.markdown import code, table
from onnxbolt.report.several import Several
from onnxbolt.terminal import one_line
from onnxbolt.terminal import table as text_table
from onnxbolt.verify.result import LEVEL_NAMES

_SHOWN = 50  # rows of a table of changed choices
_HEADER = ("model", "", "lock file", "predicted time", "error, as a share of its limit", "note")


def markdown(found: Several, base: str, compared: Sequence[Compared]) -> str:
    """The table of all models; then what differs from `base`, which is a commit in words, or empty
    if there is nothing to compare with."""
    parts = [found.markdown()]
    if base:
        rows = [(code(name), *cells, code(note)) for name, *cells, note in map(_row, compared)]
        parts += [f"## Against {code(base)}", table(_HEADER, rows)]
        parts += _choices(compared)
    return "\n\n".join(parts) + "\n"


def text(found: Several, base: str, compared: Sequence[Compared]) -> str:
    """The same tables for a log, without single choices."""
    rows = [list(map(one_line, _row(each))) for each in compared]
    against = [f"against {one_line(base)}:", text_table(_HEADER, rows)] if base else []
    return "\n".join([*against, found.text()])


def _row(found: Compared) -> list[str]:
    differences = found.differences
    count = len(differences.lock)
    return [
        found.model,
        found.state,
        f"{count} {'choice differs' if count == 1 else 'choices differ'}" if count else "",
        "; ".join(map(_time, differences.times)),
        "; ".join(map(_error, differences.errors)),
        found.note,
    ]


def _time(change: TimeChange) -> str:
    before, after = (
        "none" if us is None else f"{us:.1f}" for us in (change.before_us, change.after_us)
    )
    grown = f" ({change.slowdown:+.1f}%)" if "none" not in (before, after) else ""
    return f"sm_{change.arch}: {before} to {after} us{grown}"


def _error(change: ErrorChange) -> str:
    before, after = (
        "none" if share is None else f"{share:.2f}" for share in (change.before, change.after)
    )
    return f"{LEVEL_NAMES[change.level]}: {before} to {after}"


def _choices(compared: Sequence[Compared]) -> Iterator[str]:
    """A table of the lock file's changes for each model that has some."""
    for found in compared:
        changes = found.differences.lock
        if changes:
            yield f"### Lock file of {code(found.model)}"
            rows = [
                (code(c.what), code(c.before or ""), code(c.after or "")) for c in changes[:_SHOWN]
            ]
            yield table(("choice", "before", "after"), rows)
            if len(changes) > _SHOWN:
                yield f"and {len(changes) - _SHOWN} more"
