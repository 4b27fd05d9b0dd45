"""Runs of elementwise nodes in NHWC, one behind the other and without a product before them, that
one kernel computes instead of one for each node.

DenseNet's BatchNormalization and ReLU in front of a convolution are such a run. The nodes become
the steps of an epilogue (patterns/); a BatchNormalization becomes a Scale and a Bias. A node of
ours that replaces an ordinary one may take a run behind it as its epilogue: a feature pyramid adds
what it resizes to the next larger image. assign.py has decided before which nodes work in NHWC.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import ops
from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.canonicalize.batchnorm import scale_and_shift
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, SCALE, Step
from onnxbolt.forms import Form
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.code_runs import code_run, codes_of_image
from onnxbolt.layout.rules import batchnorm, elementwise, own
from onnxbolt.match.matcher import fits, links_over

_LEAST_KERNELS = 2  # that a run replaces; fusing a single kernel gains nothing


def elementwise_runs(graph: gs.Graph, assignment: Assignment) -> list[Candidate]:
    """The longest runs, in the graph's order; each node belongs to at most one."""
    ending = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    taken: set[gs.Node] = set()
    found = []

    def form_of(node: gs.Node) -> Form | None:
        return _form(node, assignment)

    for node in graph.nodes:
        if node in taken:
            continue
        run = code_run(node, graph, assignment, form_of, ending)
        if run is None:
            run = codes_of_image(node, assignment, form_of, ending)
        if run is None:
            run = _from(node, graph, assignment, ending, taken)
        if run is not None:
            found.append(run)
            taken.update(run.nodes)
    return found


def _from(
    node: gs.Node, graph: gs.Graph, assignment: Assignment, ending: set[str], taken: set[gs.Node]
) -> Candidate | None:
    """The run that begins at `node`; None if there is none that replaces several kernels."""
    found = _beginning(node, assignment) or _behind_own(node, assignment)
    if found is None:
        return None
    anchor, links, form = found
    output = links[-1].output if links else anchor.output
    while more := _behind(output, links, anchor, assignment, form, ending, taken):
        links += more
        output = links[-1].output
    run = (
        Candidate(anchor, tuple(links), graph.source_tensors).prefix(len(links)) if links else None
    )
    if run is None or not run.links:
        return None
    return run if sum(map(_kernels, run.nodes)) >= _LEAST_KERNELS else None


def _beginning(node: gs.Node, assignment: Assignment) -> tuple[Anchor, list[Link], Form] | None:
    """The anchor, first links and form of a run of elementwise nodes; None for another node."""
    form = _form(node, assignment)
    x = next(
        (
            t
            for t in node.inputs
            if not isinstance(t, gs.Constant) and t.shape == node.outputs[0].shape
        ),
        None,
    )
    dtype = DType.of(x.dtype) if x is not None else None
    if form is None or x is None or dtype is None:
        return None
    anchor = Anchor(ops.ALONE, node, x, None, dtype)
    links = _links(node, x, anchor, [], assignment, form)
    return (anchor, links, form) if links else None


def _behind_own(node: gs.Node, assignment: Assignment) -> tuple[Anchor, list[Link], Form] | None:
    """The anchor and form of a node of ours that replaces an ordinary one and takes an epilogue."""
    carry, op = assignment.carries.get(node), own.replacing(node)
    if carry is None or not carry.ours or op is None or not op.takes_epilogue:
        return None
    x, dtype = node.inputs[0], DType.of(node.inputs[0].dtype)
    if dtype is None:
        return None
    return Anchor(op, node, x, None, dtype), [], carry.writes[0]


def _form(node: gs.Node, assignment: Assignment) -> Form | None:
    """The form that the node writes, if it is elementwise and works in NHWC; None otherwise."""
    carry = assignment.carries.get(node)
    ours = node.op in batchnorm.OPS or elementwise.takes(node.op)
    return carry.writes[0] if carry and ours and carry.writes[0].last else None


def _behind(
    tensor: gs.Tensor,
    links: list[Link],
    anchor: Anchor,
    assignment: Assignment,
    form: Form,
    ending: set[str],
    taken: set[gs.Node],
) -> list[Link]:
    """The links that the only reader of the run's result `tensor` adds; none if there are several
    readers, or another run has that node."""
    if tensor.name in ending or len(tensor.outputs) != 1:
        return []
    reader = tensor.outputs[0]
    ended = links and links[-1].step.row.cast is not None
    if reader in taken or ended or _form(reader, assignment) != form:
        return []
    return _links(reader, tensor, anchor, links, assignment, form)


def _links(
    node: gs.Node,
    tensor: gs.Tensor,
    anchor: Anchor,
    before: list[Link],
    assignment: Assignment,
    form: Form,
) -> list[Link]:
    """The links for the steps that `node` computes; none if it is no step, or reads a tensor in
    another form."""
    links = (
        _normalization(node)
        if node.op in batchnorm.OPS
        else links_over(node, tensor, anchor, before).links
    )
    reads = zip(node.inputs, assignment.carries[node].reads, strict=True)
    same = all(read in (None, form) for _, read in reads)
    casts = any(link.step.row.cast is not None for link in links)
    if casts and not _casts(anchor, tensor):
        return []
    return list(links) if same and fits([*before, *links]) else []


def _casts(anchor: Anchor, tensor: gs.Tensor) -> bool:
    """True if a kernel writes `tensor` in another type, and no layout conversion can do so behind
    it: one channel needs none."""
    return anchor.op.takes_cast and tensor.shape[1] == 1


def _normalization(node: gs.Node) -> tuple[Link, Link]:
    """The links of a BatchNormalization with constant statistics: Scale and Bias."""
    y = node.outputs[0]
    found = scale_and_shift(node)
    assert found is not None  # the layout rule has looked
    scale, shift = (
        gs.Constant(f"{y.name}.{name}", values.astype(np.float32))
        for name, values in zip(("scale", "shift"), found, strict=True)
    )
    return Link(Step(SCALE), scale, (node,), y), Link(Step(BIAS), shift, (node,), y)


def _kernels(node: gs.Node) -> int:
    """How many kernels the node is without fusing: BatchNormalization in NHWC is a Mul and an
    Add."""
    return 2 if node.op in batchnorm.OPS else 1
