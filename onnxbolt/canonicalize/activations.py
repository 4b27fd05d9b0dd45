"""Recognize activations, given as one operator or decomposed, and write each as one node of the
domain `onnxbolt.internal`.

The formulas are those of the epilogue steps (onnxbolt/epilogues/). The node's op is the step, its
expansion the nodes that it stands for. A formula is recognized where no inner tensor has another
reader and all constants are scalars. `restore` (restore.py) writes out again the ones that were not
fused.
"""

from __future__ import annotations

from functools import lru_cache

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.formulas import Matcher, roots
from onnxbolt.canonicalize.recognition import replace
from onnxbolt.canonicalize.restore import restore
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EpilogueStep, registered
from onnxbolt.epilogues.formula import Formula

__all__ = ["restore", "run"]


def run(graph: gs.Graph) -> int:
    """Recognize all activations; returns how many."""
    count = 0
    for node in list(graph.nodes):
        found = _recognized(graph, node) if node.outputs else None
        if found is not None:
            step, x, nodes = found
            replace(graph, node, step, [x], nodes)
            count += 1
    return count


def _recognized(graph: gs.Graph, node: gs.Node) -> tuple[str, gs.Tensor, list[gs.Node]] | None:
    """The epilogue step whose last node is `node`, its argument, and all of its nodes."""
    forms = _forms(registered()).get((node.domain or "", node.op), ())
    matcher = Matcher(graph, node) if forms else None
    for step, formula in forms:
        match = matcher.match(formula) if matcher else None
        if match is not None and _fits(*match):
            return step, *match
    return None


@lru_cache(maxsize=1)
def _forms(
    entries: tuple[EpilogueStep, ...],
) -> dict[tuple[str, str], list[tuple[str, Formula]]]:
    """The names of steps with their formulas, by domain and name of the operators that the formulas
    end in."""
    found: dict[tuple[str, str], list[tuple[str, Formula]]] = {}
    for entry in entries:
        for formula in entry.forms:
            for op in roots(formula):
                found.setdefault(op, []).append((entry.name, formula))
    return found


def _fits(x: gs.Tensor, nodes: list[gs.Node]) -> bool:
    """True if kernels have the tensors' type, and the constants cannot widen the result's shape."""
    ranks = [len(t.shape) for node in nodes for t in node.inputs if isinstance(t, gs.Constant)]
    rank = 0 if x.shape is None else len(x.shape)
    return (
        DType.of(x.dtype) is not None
        and not isinstance(x, gs.Constant)
        and max(ranks, default=0) <= rank
    )
