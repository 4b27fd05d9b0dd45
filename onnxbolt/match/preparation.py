"""Rewrites that ops ask for before the precision stage, so that more of them are recognized."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph import promises
from onnxbolt.graph.promises import stage
from onnxbolt.graph.shapes import infer
from onnxbolt.ops import OPS


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def prepare(graph: gs.Graph) -> list[str]:
    """Ask all ops, in place; returns their lines for the report."""
    log = [line for op in OPS.values() for line in op.prepare(graph)]
    if log:
        infer(graph)
    return log


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def restore(graph: gs.Graph) -> int:
    """Ask all ops to take back their rewrites of nodes that no kernel took; returns how many."""
    return sum(op.restore(graph) for op in OPS.values())
