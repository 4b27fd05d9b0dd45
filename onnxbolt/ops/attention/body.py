"""Attention in standard operators, and all that these depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto

from onnxbolt.dtypes import DType
from onnxbolt.ops.attention.found import Masked, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import HEADS, View
from onnxbolt.ops.body import Body

VIEWS = ("q_view", "k_view", "v_view")  # attributes with the places of queries, keys and values


@dataclass(frozen=True)
class Place:
    """How an operand lies, as far as the body depends on it."""

    order: str  # its axes in memory (views.py)
    whole: bool  # its tensor holds nothing else

    @classmethod
    def of(cls, view: View) -> Place:
        """The place of a view."""
        return cls(view.order, view.whole)


@dataclass(frozen=True)
class Variant:
    """The differences between bodies of one element type."""

    places: tuple[Place, Place, Place]  # those of q, k and v
    masking: Masking
    mask_type: DType | None  # the type of a mask that is added
    masked: Masked
    joined: bool

    @classmethod
    def of(cls, found: ScaledDotProduct) -> Variant:
        """The variant of an attention."""
        mask, added = found.mask, found.mask.kind is Masking.ADDED
        mask_type = DType.of(mask.tensor.dtype) if mask.tensor is not None and added else None
        places = Place.of(found.q), Place.of(found.k), Place.of(found.v)
        return cls(places, mask.kind, mask_type, found.masked, found.joined)

    @property
    def words(self) -> list[str]:
        """The words of an op type that tell variants apart."""
        letters = list(zip("qkv", self.places, strict=True))
        words = [
            f"{''.join(letter for letter, place in letters if place.order == HEADS)}_by_heads",
            f"{''.join(letter for letter, place in letters if not place.whole)}_packed",
            self.masking.value,
            self.mask_type.value if self.mask_type else "",
            "" if self.masked is Masked.PLAIN else self.masked.value,
            "" if self.joined else "apart",
        ]
        return [word for word in words if word and not word.startswith("_")]


def numbers(view: View, heads: int) -> list[int]:
    """The attribute for a view by rows: elements of a group, the first head's group, the first
    element within a group, and where these end."""
    return [view.pitch, view.first, view.lead, view.first + heads, view.lead + view.size]


def attend(body: Body, variant: Variant) -> str:
    """Append the nodes for inputs x (the queries), k, v and mask. Both sides of the first product
    are multiplied by the root of the scale, since an unscaled product may overflow in fp16."""
    root = body("Sqrt", [body.given("scale", AttributeProto.FLOAT)])
    root = body.convert(root, DType.F32, body.dtype)
    q, k, v = (
        _by_heads(body, name, attribute, place, keys=name == "k")
        for name, attribute, place in zip(("x", "k", "v"), VIEWS, variant.places, strict=True)
    )
    scores = body("MatMul", [body("Mul", [q, root]), body("Mul", [k, root])])
    weights = _softmax(body, variant, scores)
    result = body("Transpose", [body("MatMul", [weights, v])], perm=[0, 2, 1, 3])
    return body("Reshape", [result, body.ints(0, 0, -1)]) if variant.joined else result


def _by_heads(body: Body, name: str, attribute: str, place: Place, keys: bool) -> str:
    """An input as [batch, heads, positions, size], keys as [batch, heads, size, positions]."""
    x = body.load(name)
    if place.order == HEADS:
        return body("Transpose", [x], perm=[0, 1, 3, 2]) if keys else x
    view = body.given(attribute)
    pitch = body("Slice", [view, body.ints(0), body.ints(1)])
    x = body("Reshape", [x, body("Concat", [body.ints(0, 0, -1), pitch], axis=0)])
    if not place.whole:
        begin = body("Slice", [view, body.ints(1), body.ints(3)])
        end = body("Slice", [view, body.ints(3), body.ints(5)])
        x = body("Slice", [x, begin, end, body.ints(2, 3)])
    return body("Transpose", [x], perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])


def _softmax(body: Body, variant: Variant, scores: str) -> str:
    """The weights of all keys, in the type of a mask that is added, if it is the wider one."""
    dtype = body.dtype
    if variant.masking is Masking.ADDED:
        assert variant.mask_type is not None  # such a mask has one
        dtype = DType.F32 if DType.F32 in (variant.mask_type, dtype) else dtype
        mask = body.convert("mask", variant.mask_type, dtype)
        scores = body("Add", [body.convert(scores, body.dtype, dtype), mask])
    elif variant.masking is not Masking.NONE:
        least = -math.inf if variant.masked is not Masked.PLAIN else _lowest(dtype)
        low = body("Const", least)
        kept = variant.masking is Masking.KEPT
        scores = body("Where", ["mask", scores, low] if kept else ["mask", low, scores])
    weights = body.convert(body("Softmax", [scores], axis=-1), dtype, body.dtype)
    if variant.masked is Masked.ZERO:
        zero = body("Const", 0.0)
        weights = body("Where", [body("IsNaN", [weights]), zero, weights])
    return weights


def _lowest(dtype: DType) -> float:
    return float(np.finfo(dtype.numpy).min)
