"""Tables of docs/performance.md and README.md, from results/*.json: `python -m benchmarks.tables`
after each new result file.

A page says where a table goes by a pair of comments, `<!-- begin:gemm -->` and `<!-- end:gemm -->`;
all between them is generated. README shows figures of one commit, that of the whole models, and
says what it leaves out, but for varying sizes, whose table names its commit; docs/performance.md
shows all, each table with its commit. Rows whose peer
has an estimated part enter no mean.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.columns import TABLES, Cell, Table, text, thousandth
from benchmarks.documents import RESULTS, missing

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/performance.md")
ONE_COMMIT = ("README.md",)  # pages that show the figures of one commit
OF_ANY_COMMIT = ("varying",)  # benchmarks that such a page shows all the same
FIGURES = ROOT / "docs" / "figures"  # benchmarks/plots.py
NOTHING = "Nothing has been measured yet."
_BLOCK = re.compile(r"(<!-- begin:(\w+) -->\n).*?(<!-- end:\2 -->)", re.DOTALL)

_FURTHER = {
    "device_ratio": "Runs back to back",
    "serial_ratio": "Launches not overlapping",
    "formula_ratio": "Planned by the formulas",
    "formula_device_ratio": "These back to back",
}
_TITLES = {
    "gemm": "GEMM against cuBLAS's bare product",
    "conv": "convolutions with epilogue against cuDNN's bare ones",
    "conv_transpose": "transposed convolutions with epilogue against cuDNN's bare ones",
    "conv3d": "convolutions of volumes with bias against cuDNN's bare ones",
    "quantized": "products of codes of 8 bits against our own in fp16",
    "epilogue": "fused epilogue against the library's bare product and PyTorch's activation",
    "padding": "padded channels against cuDNN",
    "b2b_gemm": "GEMMs in one kernel against a kernel for each",
    "b2b_conv": "convolutions in one kernel against a kernel for each",
}

Document = dict[str, Any]  # a result file


def main() -> int:
    for page in PAGES:
        path = ROOT / page
        path.write_text(rendered(path.read_text(), results_of(page)))
    return 0


def load(directory: Path) -> dict[str, list[Document]]:
    """The result files by benchmark, each benchmark's in the order of their names."""
    found: dict[str, list[Document]] = {}
    for path in sorted(directory.glob("*-*.json")):
        found.setdefault(path.name.partition("-")[0], []).append(json.loads(path.read_text()))
    return found


def results_of(page: str, directory: Path = RESULTS) -> dict[str, list[Document]]:
    """The results in `directory` that a page shows."""
    results = load(directory)
    return of_one_commit(results) if page in ONE_COMMIT else results


def of_one_commit(results: Mapping[str, Sequence[Document]]) -> dict[str, list[Document]]:
    """Documents and rows of the whole models' commit; `document["left_out"]` names the rows that
    others have. OF_ANY_COMMIT stay as they are."""
    commits = [document["commit"] for document in results.get("end_to_end", ())]
    found: dict[str, list[Document]] = {}
    for benchmark, documents in results.items():
        if benchmark in OF_ANY_COMMIT:
            found[benchmark] = [*documents]
            continue
        for document in documents:
            same = [
                row
                for row in document["rows"]
                if commits[:1] == [row["values"].get("commit", document["commit"])]
            ]
            left_out = [
                f"{row['name']} ({row['batch']})" for row in document["rows"] if row not in same
            ]
            document = {**document, "planned": []} if left_out else document
            found.setdefault(benchmark, []).append({**document, "rows": same, "left_out": left_out})
    return found


def rendered(page: str, results: Mapping[str, Sequence[Document]]) -> str:
    """`page` with new tables. Raises KeyError for a block that no table is known for."""
    special = {"overview": _overview, "forms": _forms}

    def shown(name: str) -> str:
        return special[name](results) if name in special else _block(TABLES[name], results)

    return with_blocks(page, shown)


def with_blocks(page: str, shown: Callable[[str], str]) -> str:
    """`page` with a new text in each block: what `shown` gives for its name."""
    return _BLOCK.sub(lambda block: f"{block[1]}{shown(block[2])}\n{block[3]}", page)


def _block(table: Table, results: Mapping[str, Sequence[Document]]) -> str:
    parts = [_measured(table, document) for document in results.get(table.benchmark, ())]
    if parts and table.figures and (FIGURES / f"{table.benchmark}.svg").exists():
        parts.append(f"![{table.benchmark}]({table.figures}/{table.benchmark}.svg)")
    return "\n\n".join(parts) or NOTHING


def _overview(results: Mapping[str, Sequence[Document]]) -> str:
    """A line for each benchmark of kernels, and for each group of its rows: how many, and the
    ratios' mean and least."""
    lines, left_out = [], []
    for benchmark, title in _TITLES.items():
        for document in results.get(benchmark, ()):
            if document.get("left_out") or missing(document):  # a part of the rows might flatter
                left_out.append(title)
                continue
            for name, rows in _groups(TABLES[benchmark], document["rows"]).items():
                serial = [
                    row["values"]["serial_ratio"] for row in rows if "serial_ratio" in row["values"]
                ]
                cells = [
                    f"{title}{', ' * bool(name)}{name}",
                    document["gpu"],
                    str(len(rows)),
                    *_mean_and_least(_ratios(rows)),
                    *(_mean_and_least(serial) if serial else ("", "")),
                ]
                lines.append(_line(cells))
    heading = [
        "kernels",
        "GPU",
        "shapes",
        "geometric mean of the ratios",
        "least",
        "mean, launches not overlapping",
        "least",
    ]
    table = [_line(heading), _line(["---", "---", *["---:"] * 5]), *lines] if lines else [NOTHING]
    omitted = (
        ["", f"Not, or not wholly, measured at this commit: {'; '.join(dict.fromkeys(left_out))}."]
        if left_out
        else []
    )
    return "\n".join([*table, *omitted])


def _forms(results: Mapping[str, Sequence[Document]]) -> str:
    """A line for each form of each transformer: onnxbolt's time, and ONNX Runtime's with its
    best setting."""
    names = {
        "plain export": "ours_us",
        "onnxruntime.transformers": "transformers_us",
        "PyTorch's export, opset 23": "opset23_us",
    }
    lines = []
    for document in results.get("end_to_end", ()):
        for row in document["rows"]:
            for form, us in (
                row["values"].get("forms", {}).items() if "transformers_us" in row["values"] else ()
            ):
                mine = next(
                    (
                        key
                        for name, key in names.items()
                        if form.startswith(name) and not form.endswith("fp32 inputs")
                    ),
                    "",
                )
                ours = row.get(mine) or row["values"].get(mine)
                lines.append(
                    _line(
                        [
                            row["name"],
                            str(row["batch"]),
                            form,
                            text(thousandth(ours), ".3f"),
                            f"{us / 1e3:.3f}",
                        ]
                    )
                )
            lines += [
                _line([row["name"], str(row["batch"]), form, "", "does not run"])
                for form in row["values"].get("missing", ())
            ]
    heading = _line(
        ["model", "batch", "form", "onnxbolt, ms", "ONNX Runtime's CUDA execution provider, ms"]
    )
    return "\n".join([heading, _line(["---", *["---:"] * 4]), *lines]) if lines else NOTHING


def _measured(table: Table, document: Document) -> str:
    rows = sorted(document["rows"], key=table.place)
    lines = [
        _origin(document),
        "",
        _line(table.columns),
        _line(["---", *["---:"] * (len(table.columns) - 1)]),
    ]
    lines += [_line([cell(row) for cell in table.columns.values()]) for row in rows]
    left_out = [*document.get("left_out", ()), *missing(document)]
    # a part might flatter
    lines += _means(table, rows) if table.compares and not left_out and "schema" in document else []
    lines += _older(rows)
    lines += ["", f"Not measured at this commit: {', '.join(left_out)}."] if left_out else []
    failures = [
        f"{row['name']}: {row['values']['failure']}" for row in rows if "failure" in row["values"]
    ]
    lines += (
        ["", *(f"Failed: {failure.splitlines()[0]}" for failure in failures)] if failures else []
    )
    return "\n".join(lines)


def _means(table: Table, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The mean over all rows without an estimated part, with the mean of each group in brackets;
    then the same for further ratios."""
    groups = _groups(table, rows)
    if not groups:
        return []
    mean, least = _mean_and_least([ratio for found in groups.values() for ratio in _ratios(found)])
    parts = [
        f"{name}: {', least '.join(_mean_and_least(_ratios(found)))}"
        for name, found in groups.items()
    ]
    brackets = f" ({'; '.join(parts)})" if len(parts) > 1 else ""
    lines = ["", f"Geometric mean of the ratios {mean}, least {least}{brackets}."]
    for name, title in _FURTHER.items():
        if further := [
            row["values"][name]
            for found in groups.values()
            for row in found
            if name in row["values"]
        ]:
            lines[-1] += f" {title}: {', least '.join(_mean_and_least(further))}."
    estimated = sum(_is_estimated(row) for row in rows)
    lines[-1] += (
        f" {estimated} rows whose peer's time is partly estimated are in no mean."
        if estimated
        else ""
    )
    return lines


def _older(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of a file of an earlier schema that were measured at another commit than the file
    records."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if commit := row["values"].get("commit"):
            names.setdefault(commit, []).append(f"{row['name']} ({row['batch']})")
    return [
        line
        for commit, found in names.items()
        for line in ("", f"Of commit {commit}: {', '.join(found)}.")
    ]


def _groups(table: Table, rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows that enter a mean, by group; "" is that of a table without groups."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["ratio"] and not _is_estimated(row):
            groups.setdefault(table.group(row) if table.group else "", []).append(row)
    return groups


def _is_estimated(row: dict[str, Any]) -> bool:
    """True if a part of the peer's time was not measured as it stands; the last two fields are
    those of files of schema 1."""
    return any(row["values"].get(field) for field in ("estimated", "residual_us", "elementwise_us"))


def _ratios(rows: Sequence[dict[str, Any]]) -> list[float]:
    return [row["ratio"] for row in rows]


def _mean_and_least(ratios: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"


def _origin(document: Document) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    parts = [
        document["gpu"],
        *([f"driver {document['driver']}"] if document["driver"] else []),
        versions,
    ]
    line = (
        "; ".join([*parts, *([f"commit {document['commit']}"] if document["commit"] else [])]) + "."
    )
    return line if "schema" in document else f"Not renewed since result files have digests. {line}"


def _line(cells: Sequence[str] | Mapping[str, Cell]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
