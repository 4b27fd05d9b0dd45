"""Runs of elementwise nodes between codes, in NHWC and without a product before them, that one
kernel computes: it reads bytes and writes bytes.

HardSwish of a quantized network is such a run: HardSigmoid of the values of codes, its own codes,
and their product with the values. So is the product with the gate of squeeze-and-excitation. A run
begins at a node that reads the values of codes, and ends with a QuantizeLinear. Its steps read past
values of other codes, which are not computed where nobody else reads them.

A QuantizeLinear of an image of values, and the Cast in front of it, are one kernel, too, which
reads values of 16 bits: ONNX Runtime would read values of 32 bits, written for it alone.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from onnxbolt import families, ops
from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import QUANTIZE
from onnxbolt.forms import Form
from onnxbolt.layout.assignment import Assignment
from onnxbolt.match.matcher import links_over
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.quantize import pattern as quantize
from onnxbolt.ops.quantized.pattern import decode, decoded


def code_run(
    node: gs.Node,
    graph: gs.Graph,
    assignment: Assignment,
    form_of: Callable[[gs.Node], Form | None],
    ending: set[str],
) -> Candidate | None:
    """The run that begins at `node`, an elementwise node in the form `form_of`; None if there is
    none. `ending` names tensors that have to be written."""
    form = form_of(node)
    found = _begun(node, graph, assignment, form) if form is not None else None
    if found is None:
        return None
    anchor, links = found
    while more := _behind(links, anchor, assignment, form_of, ending):
        links += more
    for count in range(len(links), 1, -1):
        run = Candidate(anchor, tuple(links[:count]), graph.source_tensors).prefix(count)
        if run is not None and len(run.links) == count and _ends(run):
            return run
    return None


def codes_of_image(
    node: gs.Node,
    assignment: Assignment,
    form_of: Callable[[gs.Node], Form | None],
    ending: set[str],
) -> Candidate | None:
    """The codes of an image of values, from `node` on; None if no kernel makes them."""
    found = quantize.of_image(ops.CODES_OF_VALUES, node)
    if found is None or form_of(node) is None:
        return None
    anchor, link = found
    if any(form_of(each) != form_of(node) for each in anchor.others):
        return None
    if anchor.others and node.outputs[0].name in ending:
        return None
    return Candidate(anchor, (link,), frozenset())


def _begun(
    node: gs.Node, graph: gs.Graph, assignment: Assignment, form: Form | None
) -> tuple[Anchor, list[Link]] | None:
    """The anchor and the first links, for the first input that is a value of codes."""
    for tensor in node.inputs:
        found = decoded(tensor)
        if found is None or assignment.form(found[0]) != form:
            continue
        codes, scaling = found
        dtype, op = DType.of_codes(codes.dtype), _op(codes, node.outputs[0])
        if dtype is None or op is None or not families.takes_codes(op.name, dtype, graph.archs):
            continue
        anchor = Anchor(op, node, codes, None, dtype)
        first = decode(tensor, codes, scaling)
        links = links_over(node, tensor, anchor, [first]).links
        if links and _same_form(links, assignment, form):
            return anchor, [first, *links]
    return None


def _op(codes: gs.Tensor, result: gs.Tensor) -> FusedOp | None:
    """The op that reads codes as its x: of the result's shape, or of one pixel of each image."""
    shape, whole = list(codes.shape or ()), list(result.shape or ())
    if shape == whole and None not in shape:
        return ops.CODES_ALONE
    return ops.CODES_GATE if len(whole) == 4 and shape == [*whole[:2], 1, 1] else None


def _behind(
    links: list[Link],
    anchor: Anchor,
    assignment: Assignment,
    form_of: Callable[[gs.Node], Form | None],
    ending: set[str],
) -> list[Link]:
    """The links of the only reader of the run's result; none where there are several, or where the
    result or codes within have to be written."""
    last, tensor = links[-1], links[-1].output
    within = [each for node in last.nodes for each in node.outputs]
    if any(each.name in ending for each in within) or len(tensor.outputs) != 1:
        return []
    reader, form = tensor.outputs[0], form_of(anchor.node)
    if last.step.row.cast is not None or form_of(reader) != form:
        return []
    found = list(links_over(reader, tensor, anchor, links).links)
    return found if _same_form(found, assignment, form) else []


def _same_form(links: list[Link] | tuple[Link, ...], assignment: Assignment, form: object) -> bool:
    tensors = (link.operand for link in links if link.step.row.operand == "tensor")
    return all(tensor is not None and assignment.form(tensor) == form for tensor in tensors)


def _ends(run: Candidate) -> bool:
    """True if the run's result are codes of the type that it reads."""
    return run.links[-1].step.name == QUANTIZE[run.anchor.dtype]
