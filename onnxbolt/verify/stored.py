"""The form in which the optimized model stores a tensor of the original: layout, order of channels,
and position in a joined tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from onnxbolt.forms import FIRST_TO_LAST, take
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.base import Part


@dataclass(frozen=True)
class Piece:
    """Channels `begin` to `end` (None: all) of a stored tensor; they are the original's tensor
    `name`."""

    name: str
    last: bool = False  # True if the channels are stored last, as in NHWC
    # original channel of each stored channel, -1 for padding; None: unchanged
    channels: tuple[int, ...] | None = None
    begin: int = 0
    end: int | None = None
    # the original's rows are windows of the stored image, which has so many axes for its pixels
    windows: Windows | None = None
    image_axes: int = 2

    @property
    def whole(self) -> bool:
        return self.begin == 0 and self.end is None

    def stored(self, original: np.ndarray) -> np.ndarray:
        """The original's values in the stored form; padding is zero. Raises ValueError if the form
        does not fit."""
        if (
            self.last and original.ndim == 2
        ):  # means over images: the original has dropped height and width
            original = original.reshape(*original.shape, 1, 1)
        if self.last and original.ndim not in FIRST_TO_LAST:
            raise ValueError(f"NHWC does not fit a tensor of shape {original.shape}")
        turned = original.transpose(FIRST_TO_LAST[original.ndim]) if self.last else original
        if self.windows is not None:
            turned = self.windows.image(turned, self.image_axes)
        if self.channels is not None and sorted(c for c in self.channels if c >= 0) != list(
            range(turned.shape[-1])
        ):
            raise ValueError(
                f"the channel map does not name each of {turned.shape[-1]} channels once"
            )
        return take(turned, self.channels, turned.ndim - 1)


@dataclass(frozen=True)
class Known:
    """A tensor of the optimized model whose values follow from the original: one piece, or several
    side by side.

    `own` and `beside`: the pieces that its node has just written. `before`: the pieces that earlier
    nodes wrote. Other channels are undefined.
    """

    stored: str
    own: Piece
    before: tuple[Piece, ...] = ()
    node: str = ""  # our node that writes it
    beside: tuple[Piece, ...] = ()

    @property
    def written(self) -> tuple[Piece, ...]:
        """The pieces that its node has just written."""
        return (self.own, *self.beside)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (*self.before, *self.written)

    @property
    def originals(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

    @property
    def padding(self) -> list[int]:
        """Indices of the stored last axis that are padding of a piece."""
        return [
            piece.begin + place
            for piece in self.pieces
            for place, channel in enumerate(piece.channels or ())
            if channel < 0
        ]


def known(
    nodes: list[NodeProto], originals: set[str]
) -> tuple[dict[str, Known], list[tuple[NodeProto, str]]]:
    """The tensors of a graph of `nodes` that are also tensors of the original, by stored name, and
    those of our nodes that name no such tensor.

    A tensor with a name of the original has that tensor's value (docs/architecture.md), whatever
    the attributes of its node are, because other nodes read it by that name. For other outputs, our
    nodes' attributes name the original tensor.
    """
    found = {
        name: Known(name, Piece(name))
        for node in nodes
        for name in node.output
        if name in originals
    }
    kept = frozenset(found)
    orphans = []
    for node in nodes:
        part = Part.of(node.op_type)
        for output, pieces in _written(node) if node.domain == FUSED_DOMAIN else ():
            piece, *beside = pieces
            if unknown := [each.name for each in pieces if each.name not in originals]:
                orphans += [(node, name) for name in unknown]
                continue
            if output in kept:
                found[output] = Known(output, Piece(output), node=node.name)
                continue
            earlier = found.get(node.input[-1]) if part is Part.NEXT else None
            if earlier is not None or piece.whole or beside or part is Part.FIRST:
                before = (
                    (*earlier.before, earlier.own)
                    if earlier is not None and not piece.whole
                    else ()
                )
                found[output] = Known(output, piece, before, node.name, tuple(beside))
    return found, orphans


def _written(node: NodeProto) -> Iterator[tuple[str, Sequence[Piece]]]:
    """The outputs of one of our nodes as its attributes describe them, except those that stand for
    no tensor."""
    values = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    order = _order(values.get("tensor_windows", []))
    if joined := values.get("joined_tensors"):
        pieces = _side_by_side(joined, values.get("joined_widths", []))
        yield node.output[0], [replace(piece, **order) for piece in pieces]
    if part := values.get("part_tensor", b"").decode():
        around = values["around"]  # as pads of Pad: of the last axis the channels before and behind
        begin, behind = int(around[len(around) // 2 - 1]), int(around[-1])
        yield (
            node.output[0],
            [Piece(part, True, _channels(values, "part_channel_map"), begin, -behind or None)],
        )
    for output, prefix in list(zip(node.output, ("", "stored_"), strict=False))[bool(part) :]:
        if name := values.get(f"{prefix}tensor", b"").decode():
            yield (
                output,
                [
                    Piece(
                        name,
                        values.get(f"{prefix}layout") == b"NHWC",
                        _channels(values, f"{prefix}channel_map"),
                        **({} if prefix else order),
                    )
                ],
            )


def _order(numbers: Sequence[int]) -> dict[str, Any]:
    """The fields of a piece for the attribute `tensor_windows`."""
    if len(numbers) != 7:
        return {}
    return {"windows": Windows(*numbers[:6]), "image_axes": numbers[6]}


def _side_by_side(names: Sequence[bytes], widths: Sequence[int]) -> list[Piece]:
    """Pieces that fill a tensor's rows. A name without a width becomes a piece that does not fit,
    and a width without a name one that has no original."""
    behind, found = sum(widths), list[Piece]()
    for name, width in itertools.zip_longest(names, widths):
        begin, behind = sum(widths) - behind, behind - (width or 0)
        found.append(Piece((name or b"").decode(), False, None, begin, -behind or None))
    return found


def _channels(values: Mapping[str, object], name: str) -> tuple[int, ...] | None:
    found = values.get(name)
    return tuple(found) if found else None  # type: ignore[arg-type]
