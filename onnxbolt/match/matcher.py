"""Matching: from each anchor, nodes are added to its epilogue as long as patterns accept them.

Epilogues of different anchors may overlap: both convolutions before a residual Add can take it.
`partition` chooses between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Candidate, Link, Refusal
from onnxbolt.epilogues import (
    MAX_PARAMS,
    MAX_STEPS,
    MAX_TENSORS,
    MAX_VECTORS,
    PRODUCT,
    STORE,
    Step,
)
from onnxbolt.families import Layers, joins
from onnxbolt.graph.skipping import SKIPPED, is_skipped
from onnxbolt.match.patterns import anchors, steps
from onnxbolt.ops import CODES_OF_VALUES
from onnxbolt.ops.quantize.pattern import of_image
from onnxbolt.patterns.types import AnchorPattern, Match

UNKNOWN = "its result is not a tensor of the original model, so it could not be verified"
_STEPS = MAX_STEPS - 4  # layout assignment may add a Store and casts
_FULL = (
    f"the previous epilogue is full: at most {MAX_VECTORS} vectors, {MAX_TENSORS} tensors,"
    f" {MAX_PARAMS} parameters and {_STEPS} steps"
)


class Matches(NamedTuple):
    """The candidates of a graph, which may overlap, and why other nodes are not in one."""

    candidates: list[Candidate]
    refusals: list[Refusal]


class Continuation(NamedTuple):
    """The links that continue an epilogue, none at its end, and why nodes are not in it."""

    links: tuple[Link, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def match(graph: gs.Graph, several: bool = False) -> Matches:
    """Each anchor with its longest epilogue, in the graph's order.

    `several`: candidates may have further products behind an epilogue, for kernels that compute
    several, even behind a multi-use value, which the kernel then stores. `plan.cuts` decides which
    of these are kept.
    """
    pinned = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    found = [_matched(graph, node, pinned, several) for node in graph.nodes]
    return Matches(
        [candidate for candidate, _ in found if candidate is not None],
        [refusal for _, refusals in found for refusal in refusals],
    )


def _matched(
    graph: gs.Graph, node: gs.Node, pinned: set[str], several: bool
) -> tuple[Candidate | None, tuple[Refusal, ...]]:
    """The candidate that begins at `node`, and what was refused on the way."""
    found = _anchored(node)
    if found is None or isinstance(found, Refusal):
        return None, () if found is None else (found,)
    anchor, links = found
    if links and links[-1].step.row.cast and _needed_inside(anchor, links, pinned):
        links = _without_codes(links)  # others need the values that these are made of
    if is_skipped(graph, *anchor.nodes, *(node for link in links for node in link.nodes)):
        return None, (Refusal(node.name, node.op, SKIPPED, node.outputs[0].name),)
    if refusal := _needed_inside(anchor, links, pinned):
        return None, (refusal,)
    whole = (
        _follow(graph, anchor, links, pinned, several)
        if anchor.op.takes_epilogue
        else Continuation(links)
    )
    candidate = Candidate(anchor, whole.links, graph.source_tensors).prefix(len(whole.links))
    if candidate is not None:
        return candidate, whole.refusals
    unknown = Refusal(node.name, node.op, UNKNOWN, node.outputs[0].name)
    return None, (*whole.refusals, unknown)


def _anchored(node: gs.Node) -> Match:
    """The anchor at `node` with its own links: the first match, otherwise the first refusal; None
    if no op begins there."""
    domain = "" if node.domain in (None, "", "ai.onnx") else node.domain
    patterns: Sequence[AnchorPattern] = anchors().get((domain, node.op), ())
    found = [match for pattern in patterns if (match := pattern.match(node)) is not None]
    matched = (match for match in found if not isinstance(match, Refusal))
    return next(matched, found[0] if found else None)


def _without_codes(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The links in front of a step that ends them, and of one that stores values beside it."""
    before = links[:-1]
    return before[:-1] if before and before[-1].step.row.values else before


def _needed_inside(anchor: Anchor, links: Sequence[Link], pinned: set[str]) -> Refusal | None:
    """The refusal of an anchor whose own nodes and links compute a value inside that others need:
    a graph output, a tensor that a subgraph reads, or one that nodes outside read."""
    nodes = [*anchor.nodes, *(node for link in links for node in link.nodes)]
    output = links[-1].output if links else anchor.output
    stored = {link.output.name for link in links if link.step.row.stores}
    for tensor in (tensor for node in nodes for tensor in node.outputs if tensor is not output):
        if tensor.name in pinned:
            reason = "one of its intermediate values is a graph output"
        elif tensor.name not in stored and any(reader not in nodes for reader in tensor.outputs):
            reason = "one of its intermediate values is read by other nodes"
        else:
            continue
        return Refusal(anchor.node.name, anchor.node.op, reason, tensor.name)
    return None


def _follow(
    graph: gs.Graph, anchor: Anchor, links: tuple[Link, ...], pinned: set[str], several: bool
) -> Continuation:
    """The whole epilogue, which begins with the anchor's own `links`."""
    followed, refusals = list(links), list[Refusal]()
    tensor, layer = anchor.output, anchor
    while True:
        found = _next(layer, followed, tensor, pinned, several, graph.archs)
        if is_skipped(graph, *(node for link in found.links for node in link.nodes)):
            found = _stays(found.links)
        refusals += found.refusals
        product = next((link for link in found.links if link.step.name == PRODUCT), None)
        if product is not None:
            if not several or not _has_kernel(anchor, [*followed, *found.links]):
                break
            layer = anchor.behind(product.operand)
        if not found.links:
            break
        followed += found.links
        tensor = found.links[-1].output
    return Continuation(tuple(followed), tuple(refusals))


def _next(
    anchor: Anchor,
    before: list[Link],
    tensor: gs.Tensor,
    pinned: set[str],
    several: bool,
    archs: Sequence[int],
) -> Continuation:
    """The links that the node behind `tensor` adds.

    A multi-use value or a graph output has to be written: it ends the epilogue, or, if a product
    follows, is stored in front of it.
    """
    if before and before[-1].step.row.cast is not None:
        return Continuation()
    if tensor.name in pinned or len(tensor.outputs) != 1:
        if beside := anchor.op.beside(anchor, tensor):
            return Continuation(beside if fits([*before, *beside]) else ())
        return _past(anchor, before, tensor) if several else Continuation()
    reader = tensor.outputs[0]
    codes = of_image(CODES_OF_VALUES, reader) if reader.op == "Cast" else None
    if codes is not None and anchor.dtype.bytes == 2:
        return _encoded(anchor, before, *codes, pinned, archs)
    return _written(links_over(reader, tensor, anchor, before), pinned)


def _encoded(
    anchor: Anchor,
    before: list[Link],
    alone: Anchor,
    link: Link,
    pinned: set[str],
    archs: Sequence[int],
) -> Continuation:
    """The link by which a kernel ends with the codes that one of their own, `alone`, would make;
    without it, that one reads values of 16 bits."""
    made = link.step.row.cast
    if made is None or not anchor.op.ends_with_codes(anchor, before, made, archs):
        return Continuation()
    return _written(Continuation((replace(link, nodes=alone.nodes),)), pinned)


def _written(found: Continuation, pinned: set[str]) -> Continuation:
    """The links up to one within which a value has to be written, as codes between two nodes; that
    one ends the epilogue with its first node, where it can."""
    for place, link in enumerate(found.links):
        within = (t for node in link.nodes for t in node.outputs if t is not link.output)
        if any(tensor.name in pinned for tensor in within):
            last = link.last or link.without
            kept = found.links[:place] + (() if last is None else (last,))
            return found._replace(links=kept)
    return found


def _stays(links: Sequence[Link]) -> Continuation:
    """The end of an epilogue in front of links of which a node stays. A product that stays begins
    a match of its own, which says so."""
    if any(link.step.name == PRODUCT for link in links):
        return Continuation()
    node = next(node for link in links for node in link.nodes)
    return Continuation(refusals=(Refusal(node.name, node.op, SKIPPED, node.outputs[0].name),))


def _past(anchor: Anchor, before: list[Link], tensor: gs.Tensor) -> Continuation:
    """Links for the first product that reads the multi-use value `tensor`; none if there is no
    such product. That is no refusal, since such a value usually ends its epilogue."""
    store = Link(Step(STORE), None, (), tensor)
    for reader in tensor.outputs:
        found = links_over(reader, tensor, anchor, [*before, store]).links
        if found and found[0].step.name == PRODUCT:
            return Continuation((store, *found))
    return Continuation()


def _has_kernel(anchor: Anchor, links: Sequence[Link]) -> bool:
    """True if some kernel may compute the products of these links together."""
    inner = [
        anchor.behind(link.operand).channels
        for link in links
        if link.step.name == PRODUCT and link.operand is not None
    ]
    widths, names = (anchor.channels, *inner), tuple(link.step.name for link in links)
    depth = int(anchor.weight.shape[0])  # a GEMM's weight is [K, N]
    layers = Layers(anchor.op.problem_type, anchor.pointwise, anchor.dtype, depth, widths, names)
    return joins(layers)


def links_over(
    node: gs.Node, tensor: gs.Tensor, anchor: Anchor, before: Sequence[Link]
) -> Continuation:
    """The links by which `node` continues an epilogue, whose links are `before` and whose result is
    `tensor`; none if no pattern accepts the node, or the kernel's arguments are full.

    A refusal's reason is general up to a colon; names and numbers follow it.
    """
    refusals = []
    for pattern in steps(node.domain or "", node.op):
        found = pattern.match(node, tensor, anchor)
        if isinstance(found, str):
            reason = f"not fused into the previous epilogue, because {found}"
            refusals.append(Refusal(node.name, node.op, reason, tensor.name))
        elif found is not None:
            links = found if isinstance(found, tuple) else (found,)
            if fits([*before, *links]):
                return Continuation(links, tuple(refusals))
            refusals.append(Refusal(node.name, node.op, _FULL, tensor.name))
    return Continuation(refusals=tuple(refusals))


def fits(links: Sequence[Link]) -> bool:
    """True if the kernel's arguments (custom_ops/runtime/declarations.h) have room for the links'
    operands and parameters: vectors are counted in the last layer, parameters in all layers
    together, and tensors may be read by the last layer or by those before it, not by both."""
    if len(links) > _STEPS:
        return False
    operands = [link.step.row.operand for link in links]
    params = sum(len(link.step.params) for link in links)
    begin = len(operands) - operands[::-1].index("weight") if "weight" in operands else 0
    inner, last = operands[:begin], operands[begin:]
    stored = any(link.step.name == STORE for link in links)
    tensors = operands.count("tensor") <= MAX_TENSORS and not (
        "tensor" in last and (stored or "tensor" in inner)
    )
    return tensors and last.count("vector") <= MAX_VECTORS and params <= MAX_PARAMS
