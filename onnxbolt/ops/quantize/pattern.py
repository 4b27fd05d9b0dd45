"""Which nodes make codes of values in a kernel of their own.

    QuantizeLinear(x)
    QuantizeLinear(Cast(x))

with one scale. Planning has those that products of rows alone read. Images are stored otherwise,
which the layout of their convolutions decides: there the layout has them (layout/code_runs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.canonicalize.quantized.moves import moves
from onnxbolt.canonicalize.quantized.scaling import (
    QUANTIZE,
    is_dequantize,
    is_quantize,
    scaling_of,
)
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.epilogues import QUANTIZE as ENDS
from onnxbolt.epilogues import Step
from onnxbolt.graph.edit import is_mean, producer
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, Match


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (
        AnchorPattern(("Cast",), partial(_cast, op)),
        AnchorPattern((QUANTIZE,), partial(_quantize, op)),
    )


def end(node: gs.Node) -> Link | None:
    """The link of a QuantizeLinear whose codes products of rows read; None for any other node."""
    link = _link(node) if _of_rows(node.outputs[0]) else None
    return None if link is None or _of_mean(node, link) else link


def _of_mean(quantize: gs.Node, link: Link) -> bool:
    """True where codes of integers are made of an image's mean of codes, which is stored as the
    image is: the layout has these."""
    mean = producer(quantize.inputs[0])
    if mean is None or not is_mean(mean) or link.step.row.cast not in INTEGERS:
        return False
    return is_dequantize(producer(mean.inputs[0]))


def of_image(op: FusedOp, node: gs.Node) -> tuple[Anchor, Link] | None:
    """The codes that a kernel of `op` makes of an image of values from `node` on, a QuantizeLinear
    or the Cast in front of one; None for any other node, and without such a kernel."""
    quantize = node if is_quantize(node) else behind(node)
    link = None if quantize is None else _link(quantize)
    if quantize is None or link is None:
        return None
    x, made = node.inputs[0], link.step.row.cast
    dtype = DType.of(x.dtype)
    if dtype is None or isinstance(x, gs.Constant):
        return None
    if made is None or len(x.shape or ()) != 4 or not families.takes_codes(op.name, made):
        return None
    return Anchor(op, node, x, None, dtype, (), () if node is quantize else (quantize,)), link


def behind(cast: gs.Node) -> gs.Node | None:
    """The QuantizeLinear that alone reads what a Cast makes; None where there is none."""
    readers = cast.outputs[0].outputs
    if cast.op != "Cast" or len(readers) != 1 or not is_quantize(readers[0]):
        return None
    return readers[0]


def _link(quantize: gs.Node) -> Link | None:
    """The link of a QuantizeLinear with one scale; None for any other node."""
    scaling, codes = scaling_of(quantize), quantize.outputs[0]
    dtype = None if scaling is None else DType.of_codes(scaling.code)
    if scaling is None or dtype is None or scaling.axis is not None:
        return None
    if quantize.attrs.get("saturate", 1) != 1 or not scaling.inverts:
        return None
    step = Step(ENDS[dtype], (float(scaling.scale), float(scaling.zero)))
    return Link(step, None, (quantize,), codes)


def codes_behind(tensor: gs.Tensor) -> Link | None:
    """The link of the first codes that are made of `tensor`, which other nodes may read as well;
    None where there are none."""
    return next((link for reader in tensor.outputs if (link := _codes_of(reader))), None)


def _codes_of(reader: gs.Node) -> Link | None:
    """The link of the codes that a QuantizeLinear, or a Cast in front of one, makes."""
    if is_quantize(reader):
        return end(reader)
    quantize = behind(reader)
    link = None if quantize is None else end(quantize)
    return None if link is None else replace(link, nodes=(reader, *link.nodes))


def _of_rows(codes: gs.Tensor) -> bool:
    """True if products of rows of codes read the values of `codes`, which others may move before,
    and nobody else."""
    readers = [reader for each in codes.outputs for reader in _readers(each)]
    return bool(readers) and all(map(_multiplies_codes, readers))


def _multiplies_codes(node: gs.Node) -> bool:
    if node.op not in ("MatMul", "Gemm") or node.domain:
        return False
    weight = producer(node.inputs[1])
    return weight is not None and is_dequantize(weight)


def _readers(node: gs.Node) -> Iterator[gs.Node]:
    """The nodes that read values of the codes that `node` reads; itself if it is no such node."""
    if not is_dequantize(node) and not moves(node):
        yield node
        return
    for reader in node.outputs[0].outputs:
        if is_dequantize(node):
            yield reader
        else:
            yield from _readers(reader)


def _cast(op: FusedOp, node: gs.Node) -> Match:
    quantize = behind(node)
    return None if quantize is None else _matched(op, node, quantize)


def _quantize(op: FusedOp, node: gs.Node) -> Match:
    return _matched(op, node, node)


def _matched(op: FusedOp, first: gs.Node, quantize: gs.Node) -> Match:
    x, link = first.inputs[0], end(quantize)
    dtype = DType.of(x.dtype)
    if not families.makes_codes() or link is None or dtype is None or isinstance(x, gs.Constant):
        return None
    if not x.shape or not isinstance(x.shape[-1], int) or not x.shape[-1]:
        return Refusal(quantize.name, QUANTIZE, "the length of its rows is not known", x.name)
    others = () if first is quantize else (quantize,)
    return Anchor(op, first, x, None, dtype, (), others), (link,)
