"""The blocks of both models with all that the page tells of each, and where they are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from onnxbolt.report.page import numbers
from onnxbolt.report.page.folding import Fold, folds
from onnxbolt.report.page.layout import HEIGHT, WIDTH, laid_out

OURS = "com.onnxbolt"  # the domain of fused nodes and of layout conversions
_PAD = 12  # pixels between a frame and the blocks in it
_LETTER = 8  # pixels of a letter of a frame's title, at most
_TITLE = 36  # letters of a title
_LONG = 24  # characters of a text that is worth sharing
Values = Mapping[str, Any]
Fact = tuple[str, str]
_Key = tuple[int | None, str]  # the number of a fold, and a body
_Frame = tuple[int, int, int, int, str]  # x, y, width, height and title


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
    stays = {
        (source, block["body"]): place
        for place, block in reversed(list(enumerate(report["after"]["blocks"])))
        for source in block["sources"]
    }

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
        sources = [was[s, block["body"]] for s in block["sources"] if (s, block["body"]) in was]
        return found | {"link": ["In the original", "before", sources]} if sources else found

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
        if found.get("model") and measured is None:  # reports of earlier versions have none
            facts.append(("Predicted by", f"cost model {found['model']}"))
    facts += [("Configuration", config) for config in node["configs"]]
    return [*facts, *(("Kernel", name) for name in node["kernels"] if name)]


def _errors(rows: Sequence[Values]) -> list[Fact]:
    """At each level the comparison nearest to its limit."""
    facts = []
    for level in dict.fromkeys(row["level"] for row in rows):
        found = [row for row in rows if row["level"] == level]
        row = max(found, key=numbers.nearness)
        more = f", the largest of {len(found)}" if len(found) > 1 else ""
        why = "" if row["passed"] else f": {row['unjudged'] or row['reason']}"
        facts.append(
            (
                f"Error, {level}, {row['provider']}{more}",
                f"{numbers.error(row['error'])} of limit {numbers.error(row['limit'])}{why}",
            )
        )
    return facts


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


def _drawing(model: Values, told: Callable[[int, Values], dict[str, Any]]) -> dict[str, Any]:
    """The blocks, and both views: of all of them, and of those that are left when equal layers are
    drawn once and computations of shapes that were simplified away are left out.

    `alike` has the places of equal blocks of equal layers, of which the first one is drawn, and
    `stand_ins` the block that is shown in the place of one that is left out.
    """
    blocks = model["blocks"]
    facts = [told(place, block) for place, block in enumerate(blocks)]
    everything = _Shown.of(blocks, range(len(blocks)))
    kept = _Shown.of(
        blocks, [place for place, fact in enumerate(facts) if not _is_aside(fact, blocks[place])]
    )
    found = folds([_kind(blocks[place]) for place in kept.places], kept.inputs)
    views = {"all": _view(blocks, everything, [])}
    if found or len(kept.places) < len(blocks):
        views["folded"] = _view(blocks, kept, found)
    return {
        "blocks": [
            {
                "name": block["name"],
                "op": block["op"],
                "label": block["op"],
                "shape": numbers.shape(block),
                "body": block["body"],
                "reads": block["inputs"],
                **fact,
            }
            for block, fact in zip(blocks, facts, strict=True)
        ],
        "alike": [
            [kept.places[position] for position in fold.all_like(slot)]
            for fold in found
            for slot in range(fold.start, fold.start + fold.period)
        ],
        "stand_ins": _stand_ins(blocks, set(kept.places)),
        "views": views,
    }


def _is_aside(fact: Values, block: Values) -> bool:
    """True for a computation of shapes, masks or indices that was simplified away."""
    return fact["kind"] == "gone" and block["element"].startswith(("int", "uint", "bool"))


def _kind(block: Values) -> tuple[Hashable, ...]:
    """Blocks of equal layers have equal kinds."""
    return block["op"], block["domain"], block["element"], tuple(block["shape"]), block["body"]


def _stand_ins(blocks: Sequence[Values], shown: Collection[int]) -> list[tuple[int, int]]:
    """For each block that is not shown, the first one that reads it and is, or that stands in for
    one that does."""
    found: dict[int, int] = {}
    for reader in reversed(range(len(blocks))):
        for maker in blocks[reader]["inputs"]:
            if maker not in shown and (reader in shown or reader in found):
                found[maker] = found.get(reader, reader)
    return sorted(found.items())


@dataclass(frozen=True)
class _Shown:
    """Some of a model's blocks, and the positions among them that each one reads."""

    places: Sequence[int]
    inputs: Sequence[Sequence[int]]

    @classmethod
    def of(cls, blocks: Sequence[Values], places: Sequence[int]) -> _Shown:
        at = {place: position for position, place in enumerate(places)}
        return cls(
            places,
            [[at[read] for read in blocks[place]["inputs"] if read in at] for place in places],
        )


def _view(blocks: Sequence[Values], shown: _Shown, found: Sequence[Fold]) -> dict[str, Any]:
    """Blocks as [place, x, y], edges as one path, and frames around folds and bodies as
    [x, y, width, height, label]."""
    fold_of = {
        position: number
        for number, fold in enumerate(found)
        for position in range(fold.start, fold.end)
    }
    first = [
        found[fold_of[position]].first(position) if position in fold_of else position
        for position in range(len(shown.places))
    ]
    drawn = [position for position in range(len(first)) if first[position] == position]
    rank = {position: number for number, position in enumerate(drawn)}
    reads = [
        sorted({rank[first[maker]] for maker in shown.inputs[position] if first[maker] < position})
        for position in drawn
    ]
    groups = _groups([(fold_of.get(p), blocks[shown.places[p]]["body"]) for p in drawn])
    layout = laid_out(
        reads, [number for number, (_, count) in enumerate(groups) for _ in range(count)]
    )
    frames = _frames(groups, found, layout.places)
    return {
        "width": max([layout.width, *(_right(frame) for frame in frames)]),
        "height": layout.height,
        "blocks": [
            [shown.places[position], *place]
            for position, place in zip(drawn, layout.places, strict=True)
        ],
        "path": layout.path,
        "frames": frames,
    }


def _groups(keys: Sequence[_Key]) -> list[tuple[_Key, int]]:
    """Runs of blocks of one fold, or of one graph between folds, with their lengths."""
    return [(key, len(list(run))) for key, run in groupby(keys)]


def _frames(
    groups: Sequence[tuple[_Key, int]], found: Sequence[Fold], places: Sequence[tuple[int, int]]
) -> list[_Frame]:
    """A frame around each fold and each part of a body."""
    frames, begin = list[_Frame](), 0
    for (number, body), count in groups:
        title = body if number is None else f"{found[number].count} ×"
        if title:
            frames.append(_frame(places[begin : begin + count], title))
        begin += count
    return frames


def _frame(corners: Sequence[tuple[int, int]], title: str) -> _Frame:
    left, top = min(x for x, _ in corners), min(y for _, y in corners)
    right, bottom = max(x for x, _ in corners) + WIDTH, max(y for _, y in corners) + HEIGHT
    shown = title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…"
    return (left - _PAD, top - _PAD, right - left + 2 * _PAD, bottom - top + 2 * _PAD, shown)


def _right(frame: _Frame) -> int:
    """The right end of a frame with its title, which stands beside it."""
    left, _, width, _, title = frame
    return left + width + _LETTER * len(title)
