"""Normalizations of rows in the epilogue of the product before them (steps LayerNorm and RmsNorm),
whose kernel then holds whole rows.

    s = x W + b + residual      y, s = norm(x W + b + residual)
    y = norm(s)

s is a second output if others read it. Times decide (plan/mergers.py). The product may be the last
layer of a chain that one kernel computes: then the chain's other layers count by themselves. Which
of the two kernels adds the residual is settled before (plan/residuals.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Link
from onnxbolt.epilogues import CASTS, MAX_PARAMS, MAX_TENSORS, MAX_VECTORS, STORE, Step
from onnxbolt.families import problem_types
from onnxbolt.graph.edit import sole_use
from onnxbolt.plan.mergers import NOT_FUSED, Merger, layers_of
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point

_REMEDY = (
    "only sm_90a has kernels that normalize the rows of a product: of up to 2,048 columns that"
    " up to eight blocks divide evenly"
)


def mergers(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Merger]:
    """The normalizations that the product before them might compute, each once; none if planning
    may choose no kernels for that."""
    producers = {
        c.output.name: c
        for c in candidates
        if c.anchor.op.takes_norm and layers_of(c) and c.out is c.anchor.dtype
    }
    taken = set[str]()  # products that have a normalization already
    for norm in candidates:
        for x in (norm.anchor.x, *norm.tensors):
            before = producers.get(x.name)
            if before is None or x.name in taken:
                continue
            *others, product = layers_of(before)
            both = _with_norm(graph, product, norm)
            if both is None or _class_of(both) not in problem_types():
                continue
            taken.add(x.name)
            sizes = f"rows of {product.widths[-1]} columns"
            apart, node = (before, norm), norm.anchor.nodes[-1]
            yield Merger((both, *others), apart, node, NOT_FUSED, sizes, _REMEDY)
            break


def _with_norm(graph: gs.Graph, product: Candidate, norm: Candidate) -> Candidate | None:
    """One candidate for both; None if the normalization is of another type, or if its residual and
    the product's are too many operands."""
    x = product.output
    links = norm.anchor.op.as_epilogue(norm, x)
    if not links or norm.anchor.dtype is not product.anchor.dtype:
        return None
    adds = links[0].step.row.operand == "tensor"
    if sole_use(graph, x) is None:
        if adds:
            return None  # others read what the residual is added to
        links = (Link(Step(STORE), None, (), x), *links)
    whole = (*product.links, *links)
    found = dataclasses.replace(product, links=whole, layers=(product, norm))
    known = all(map(found.is_known, found.outputs))
    return found if known and _fits(whole) else None


def _fits(links: Sequence[Link]) -> bool:
    """True if the kernel's arguments have room for the links' operands and parameters."""
    operands = [link.step.row.operand for link in links]
    return (
        operands.count("vector") <= MAX_VECTORS
        and operands.count("tensor") <= MAX_TENSORS
        and sum(len(link.step.params) for link in links) <= MAX_PARAMS
        and not any(link.step.name in CASTS.values() for link in links)
    )


def _class_of(candidate: Candidate) -> str:
    return type(problem_of(candidate, None)).__name__
