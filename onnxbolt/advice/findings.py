"""Why products, normalizations and layout changes are not fused, or not at their best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.advice.forecast import Planned
from onnxbolt.archs import get
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.graph.bodies import located
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.plan.node_times import node_us
from onnxbolt.report.coverage import left_out

_NORMS = ("Normalization", "LRN")  # an op type that contains one of these normalizes
_LAYOUTS = ("Transpose", "SpaceToDepth", "DepthToSpace")
UNFUSED = "unfused"  # ONNX Runtime runs it
APART = "apart"  # fused, but not into one kernel with a neighbour
LAYOUT = "layout"  # it changes a layout, and nothing else
UNALIGNED = "unaligned"  # fused, and its channels are padded


@dataclass(frozen=True)
class Finding:
    """One thing that is not fused, or not at its best, and why: `state` is one of this module's.
    `ms` is the predicted time of the node for each architecture, empty if it is not known."""

    state: str
    node: str
    op: str
    reason: str
    remedy: str = ""
    ms: tuple[float, ...] = ()
    advices: tuple[str, ...] = ()  # the keys of those that concern the node


def all_findings(planned: Sequence[Planned], archs: Sequence[int]) -> list[Finding]:
    """The findings of all graphs of a model, in the order of its nodes."""
    return [finding for each in planned for finding in _of(each, archs)]


def _of(planned: Planned, archs: Sequence[int]) -> Iterator[Finding]:
    account = planned.part.account
    stayed = list(_times(planned, archs))
    times = {name: ms for node, ms in stayed for name in node.provenance}
    fused = {located(s, row.body) for row in account.fused for s in row.source_nodes}
    refusals = [*account.refusals, *left_out(account.work, fused, account.refusals)]
    known = dict[str, Refusal]()
    for refusal in refusals:
        known.setdefault(refusal.node, refusal)
        name = located(refusal.node, refusal.body)
        state = APART if refusal.apart else UNFUSED
        if refusal.apart or name not in fused:
            ms = () if refusal.apart else times.get(refusal.node, ())
            yield Finding(state, name, refusal.op, refusal.reason, refusal.remedy, ms)
    for node, ms in stayed:
        name = located(node.name or node.outputs[0].name, account.body)
        if node.domain == DOMAIN:
            if not node.attrs.get("source_nodes"):
                reason = f"{node.attrs.get('rule', node.op)}: neighbours want another layout"
                yield Finding(LAYOUT, name, node.op, reason, ms=ms)
        elif node.op in _LAYOUTS and any(ms):
            reason = "it moves the whole tensor, and no kernel reads or writes the other layout"
            yield Finding(LAYOUT, name, node.op, reason, ms=ms)
        elif any(word in node.op for word in _NORMS) and node.name not in known:
            reason = "no pattern of a normalization takes it"
            yield Finding(UNFUSED, name, node.op, reason, ms=ms)
    for candidate in account.chosen.candidates:
        yield from _unaligned(candidate, account.body)


def _times(planned: Planned, archs: Sequence[int]) -> Iterator[tuple[gs.Node, tuple[float, ...]]]:
    """The nodes that stayed, and changes of layouts, with their predicted milliseconds."""
    for node in planned.others:
        if node.domain != DOMAIN or not node.attrs.get("source_nodes"):
            yield node, tuple(node_us(node, get(arch), planned.at) / 1000 for arch in archs)


def _unaligned(candidate: Candidate, body: str) -> Iterator[Finding]:
    """A finding for a product whose channels are stored with padding."""
    anchor = candidate.anchor
    if anchor.weight is None:
        return
    unit = anchor.dtype.alignment
    read = anchor.x.shape[anchor.channel_axis(len(anchor.x.shape))] if anchor.x.shape else None
    odd = {
        "writes": [width for width in candidate.widths if width % unit],
        "reads": [read] if isinstance(read, int) and read % unit else [],
    }
    for verb, widths in odd.items():
        if widths:
            reason = f"it {verb} {widths[0]} channels, which are no multiple of 16 bytes"
            remedy = f"channels in multiples of {unit}"
            name = located(anchor.node.name, body)
            yield Finding(UNALIGNED, name, anchor.node.op, reason, remedy)
