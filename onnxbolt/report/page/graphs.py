"""The blocks of both models with all that the page tells of each, and where they are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.page import numbers
from onnxbolt.report.page.folding import Fold, folds
from onnxbolt.report.page.layout import HEIGHT, WIDTH, laid_out

OURS = "com.onnxbolt"  # the domain of fused nodes and of layout conversions
_PAD = 12  # pixels between a frame and the blocks in it
_LONG = 24  # characters of a text that is worth sharing
Values = Mapping[str, Any]
Fact = tuple[str, str]


@dataclass(frozen=True)
class Links:
    """Places of blocks that belong together: of the fused nodes among the blocks after, and of
    their source nodes among those before."""

    fused: Mapping[int, int]  # the row of the report's fused nodes, by place
    places: Mapping[int, int]  # the reverse
    sources: Mapping[int, tuple[int, ...]]  # by row
    taken: Mapping[int, int]  # the row that replaces a node of the original, by its place


def links_of(report: Values) -> Links:
    """Found by names, which are unique in each graph."""
    before = _by_name(report["before"]["blocks"])
    after = _by_name(report["after"]["blocks"])
    places = {
        row: after[node["name"], node["body"]]
        for row, node in enumerate(report["fused"])
        if (node["name"], node["body"]) in after
    }
    sources = {
        row: tuple(
            sorted(
                before[name, node["body"]]
                for name in node["source_nodes"]
                if (name, node["body"]) in before
            )
        )
        for row, node in enumerate(report["fused"])
    }
    taken = {place: row for row, found in sources.items() for place in found}
    return Links({place: row for row, place in places.items()}, places, sources, taken)


def _by_name(blocks: Sequence[Values]) -> dict[tuple[str, str], int]:
    return {(block["name"], block["body"]): place for place, block in enumerate(blocks)}


# --- a block's facts ------------------------------------------------------------------------------


def before(report: Values, links: Links) -> dict[str, Any]:
    """The drawing of the original."""
    kept, refused = _reasons(report["kept"]), _reasons(report["refusals"])
    stays = _by_name(report["after"]["blocks"])

    def told(place: int, block: Values) -> dict[str, Any]:
        key = block["name"], block["body"]
        facts = [("Not fused", reason) for reason in refused.get(key, ())]
        facts += [("Kept in fp32", reason) for reason in kept.get(key, ())]
        row = links.taken.get(place)
        if row is not None and row in links.places:
            link = ["Fused into", "after", [links.places[row]]]
            return {"kind": "taken", "facts": facts, "link": link}
        if key in stays:
            link = ["In the optimized model", "after", [stays[key]]]
            return {"kind": "fp32" if key in kept else "other", "facts": facts, "link": link}
        return {"kind": "gone", "facts": [*facts, ("Simplified", "other nodes do its work")]}

    return _drawing(report["before"], told)


def after(
    report: Values, links: Links, errors: Mapping[tuple[str, str], Sequence[Values]]
) -> dict[str, Any]:
    """The drawing of the optimized model; `errors` has the rows of verification for each fused
    node."""
    kept, refused = _reasons(report["kept"]), _reasons(report["refusals"])
    was = _by_name(report["before"]["blocks"])

    def told(place: int, block: Values) -> dict[str, Any]:
        key = block["name"], block["body"]
        if place in links.fused:
            row = links.fused[place]
            node = report["fused"][row]
            return {
                "kind": "fused",
                "label": node["rule"],
                "time": _fused_us(node) or _us(block),
                "facts": [
                    *_facts_of_fused(node),
                    *_times(report, block),
                    *_errors(errors.get(key, ())),
                ],
                "link": ["Source nodes", "before", links.sources[row]],
            }
        if block["domain"] == OURS:
            return {"kind": "layout", "facts": _times(report, block), "time": _us(block)}
        facts = [("Not fused", reason) for reason in refused.get(key, ())]
        facts += [("Kept in fp32", reason) for reason in kept.get(key, ())]
        found = {
            "kind": "fp32" if key in kept else "other",
            "facts": [*_times(report, block), *facts],
            "time": _us(block),
        }
        return found | {"link": ["In the original", "before", [was[key]]]} if key in was else found

    return _drawing(report["after"], told)


def _us(block: Values) -> float:
    """Microseconds on the first architecture, by which blocks have a bar."""
    return round(block["us"][0], 3) if block["us"] else 0.0


def _fused_us(node: Values) -> float:
    if not node["predicted"]:
        return 0.0
    found = node["predicted"][0]
    return round(found["ours_us"] if found["measured_us"] is None else found["measured_us"], 3)


def _times(report: Values, block: Values) -> list[Fact]:
    """The predicted times of a node without kernels of its own."""
    return [
        (f"Time on sm_{arch}", numbers.time(us))
        for arch, us in zip(report["archs"], block["us"], strict=False)
    ]


def _reasons(rows: Sequence[Values]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        remedy = f" (remedy: {row['remedy']})" if row.get("remedy") else ""
        found[row["node"], row["body"]].append(f"{row['reason']}{remedy}")
    return found


def _facts_of_fused(node: Values) -> list[Fact]:
    facts = [("Stands for", node["tensor"]), ("Rule", node["rule"])]
    if node["flops"]:
        facts.append(("FLOPs", numbers.flops(node["flops"])))
    for found in node["predicted"]:
        arch, measured = found["arch"], found["measured_us"]
        ours = numbers.time(
            found["ours_us"] if measured is None else measured, measured is not None
        )
        facts += [
            (f"Time on sm_{arch}", ours),
            ("ONNX Runtime", numbers.time(found["ort_us"])),
            ("Roofline", numbers.time(found["floor_us"])),
        ]
    facts += [("Configuration", config) for config in node["configs"]]
    return [*facts, *(("Kernel", name) for name in node["kernels"] if name)]


def _errors(rows: Sequence[Values]) -> list[Fact]:
    return [
        (
            f"Error, {row['level']}, {row['provider']}",
            f"{numbers.error(row['error'])} of limit {numbers.error(row['limit'])}"
            f"{'' if row['passed'] else ': ' + (row['unjudged'] or row['reason'])}",
        )
        for row in rows
    ]


def shared_texts(drawings: Iterable[dict[str, Any]]) -> list[str]:
    """The long texts of facts, each once; the facts then have their places in this list. Equal
    nodes have equal configurations and kernels, whose names are long."""
    places: dict[str, int] = {}
    for drawing in drawings:
        for block in drawing["blocks"]:
            block["facts"] = [
                (title, text if len(text) < _LONG else places.setdefault(text, len(places)))
                for title, text in block["facts"]
            ]
    return list(places)


# --- the places of blocks -------------------------------------------------------------------------


def _drawing(model: Values, told: Any) -> dict[str, Any]:
    blocks = model["blocks"]
    inputs = [block["inputs"] for block in blocks]
    kinds = [
        (block["op"], block["domain"], block["element"], tuple(block["shape"]), block["body"])
        for block in blocks
    ]
    found = folds(kinds, inputs)
    views = {"all": _view(blocks, inputs, [])}
    if found:
        views["folded"] = _view(blocks, inputs, found)
    return {
        "blocks": [
            {
                "name": block["name"],
                "op": block["op"],
                "label": block["op"],
                "shape": numbers.shape(block),
                "body": block["body"],
                "reads": block["inputs"],
                **told(place, block),
            }
            for place, block in enumerate(blocks)
        ],
        "folds": [[fold.start, fold.period, fold.count] for fold in found],
        "views": views,
    }


def _view(
    blocks: Sequence[Values], inputs: Sequence[Sequence[int]], found: Sequence[Fold]
) -> dict[str, Any]:
    """Blocks as [place, x, y], edges as one path, and frames around folds and bodies as
    [x, y, width, height, label]."""
    fold_of = {
        place: number for number, fold in enumerate(found) for place in range(fold.start, fold.end)
    }
    first = {
        place: found[fold_of[place]].first(place) if place in fold_of else place
        for place in range(len(blocks))
    }
    shown = [place for place in first if first[place] == place]
    position = {place: number for number, place in enumerate(shown)}
    reads = [
        sorted({position[first[maker]] for maker in inputs[place] if first[maker] < place})
        for place in shown
    ]
    groups = _groups(blocks, shown, fold_of)
    layout = laid_out(
        reads, [number for number, (_, members) in enumerate(groups) for _ in members]
    )
    frames = []
    for key, members in groups:
        title = f"{found[key].count} ×" if isinstance(key, int) else key
        if title:
            frames.append([*_frame([layout.places[position[place]] for place in members]), title])
    return {
        "width": layout.width,
        "height": layout.height,
        "blocks": [[place, *layout.places[position[place]]] for place in shown],
        "path": layout.path,
        "frames": frames,
    }


def _groups(
    blocks: Sequence[Values], shown: Sequence[int], fold_of: Mapping[int, int]
) -> list[tuple[int | str, list[int]]]:
    """Consecutive blocks of one fold, with its number, or of one graph between folds, with the
    place of its body."""
    groups: list[tuple[int | str, list[int]]] = []
    for place in shown:
        key = fold_of.get(place, blocks[place]["body"])
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        groups[-1][1].append(place)
    return groups


def _frame(corners: Sequence[tuple[int, int]]) -> list[int]:
    left, top = min(x for x, _ in corners), min(y for _, y in corners)
    right, bottom = max(x for x, _ in corners) + WIDTH, max(y for _, y in corners) + HEIGHT
    return [left - _PAD, top - _PAD, right - left + 2 * _PAD, bottom - top + 2 * _PAD]
