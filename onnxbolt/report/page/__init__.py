"""A report as one HTML file that needs no network.

Names from a model are hostile. The template escapes them (Jinja2's autoescape), the embedded JSON
has no character that HTML could take for markup, the script writes them by `textContent` alone, and
the page's content security policy allows this style and this script, by their hashes, and nothing
else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from onnxbolt.report.markdown import plain
from onnxbolt.report.page import curve, front, graphs, overview, tables
from onnxbolt.report.page.layout import HEIGHT, WIDTH

_HERE = Path(__file__).parent
# characters with a meaning in HTML, and the two ends of lines that JSON allows and scripts do not
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
Values = Mapping[str, Any]


def page(report: Values) -> str:
    """The page of a report, whose values are those of its JSON. Equal values give equal bytes."""
    style, script = (
        _HERE.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    drawn = all(report[side] and report[side]["blocks"] for side in ("before", "after"))
    data = _data(report) if drawn else {"graphs": {}, "tables": {}}
    text = _template().render(
        report=report,
        title=Path(report["original"]).name or "a model in memory",
        figures=overview.figures(report),
        provenance=overview.provenance(report),
        charts=overview.charts(report, graphs.links_of(report)) if drawn else (),
        curve=curve.of(report["tuning"]["history"]) if report["tuning"] else None,
        front=front.of(report["quantization"]),
        tables=data["tables"],
        drawn=drawn,
        bar=overview.BAR,
        style=Markup(style),
        script=Markup(script),
        data=Markup(embedded(data)),
        policy=(
            f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
            " base-uri 'none'; form-action 'none'"
        ),
    )
    # halves of surrogate pairs, which a hand-written report may have, are no text
    return text.encode(errors="replace").decode()


def embedded(data: object) -> str:
    """JSON that can stand between <script> and </script>; NaN and infinities become null."""
    text = json.dumps(plain(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # half of a surrogate pair, which no encoding has
    return text.translate(_ESCAPED).encode(errors="backslashreplace").decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(report: Values) -> dict[str, Any]:
    links, errors = graphs.links_of(report), _errors(report)
    found = {
        "nodes": tables.nodes(report, links, errors),
        "errors": tables.errors(report, links),
        "regions": tables.regions(report),
        "refusals": tables.refusals(report),
        "kept": tables.kept(report),
        "tasks": tables.tasks(report),
        "quality": tables.quality(report),
        "operators": tables.operators(report),
    }
    drawings = {
        "before": graphs.before(report, links),
        "after": graphs.after(report, links, errors),
    }
    return {
        "size": [WIDTH, HEIGHT],
        "texts": graphs.shared_texts(drawings.values()),
        "graphs": drawings,
        "tables": {name: table for name, table in found.items() if table["rows"]},
    }


def _errors(report: Values) -> Mapping[tuple[str, str], Sequence[Values]]:
    """The rows of verification by the fused node that they are about."""
    found: dict[tuple[str, str], list[Values]] = defaultdict(list)
    for row in (report["verification"] or {"rows": ()})["rows"]:
        if row["node"]:
            found[row["node"], row["body"]].append(row)
    return found


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
