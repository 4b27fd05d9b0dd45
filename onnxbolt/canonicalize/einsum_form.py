"""Einsum("nhwpqc->nchpwq", x) = Transpose(x): an Einsum of one tensor that permutes its axes.

Diffusion transformers bring patches to an image so.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs


def run(graph: gs.Graph) -> int:
    """Turn such Einsums into Transposes; returns how many."""
    count = 0
    for node in graph.nodes:
        axes = _permutation(node)
        if axes is not None:
            node.op, node.attrs, node.origin = "Transpose", {"perm": axes}, None
            count += 1
    return count


def _permutation(node: gs.Node) -> list[int] | None:
    """The axis of x that each axis of the result is; None where that is not all."""
    if node.op != "Einsum" or node.domain or len(node.inputs) != 1:
        return None
    given, arrow, result = str(node.attrs["equation"]).replace(" ", "").partition("->")
    letters = given.isalpha() and len({*given}) == len(given)
    if not arrow or not letters or sorted(given) != sorted(result):
        return None
    return [given.index(letter) for letter in result]
