"""Attention in standard operators, and all that these depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import AttributeProto

from onnxbolt.dtypes import DType
from onnxbolt.ops.attention.attributes import VIEWS
from onnxbolt.ops.attention.found import Masked, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import HEADS, View
from onnxbolt.ops.attention.window_body import WindowRows
from onnxbolt.ops.body import REST, Body


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
    grouped: bool = False  # several heads share keys and values
    banded: bool = False
    windows: bool = False
    periodic: bool = False  # the mask has fewer batches than the scores

    @classmethod
    def of(cls, found: ScaledDotProduct) -> Variant:
        """The variant of an attention."""
        mask, added = found.mask, found.mask.kind is Masking.ADDED
        mask_type = DType.of(mask.tensor.dtype) if mask.tensor is not None and added else None
        places = Place.of(found.q), Place.of(found.k), Place.of(found.v)
        return cls(
            places,
            mask.kind,
            mask_type,
            found.masked,
            found.joined,
            found.key_heads != found.heads,
            bool(mask.band),
            found.windows is not None,
            mask.period > 0,
        )

    @property
    def letters(self) -> str:
        """One letter for each input behind x (FusedOp.letters)."""
        if self.masking is Masking.NONE:
            return "tt"
        if self.masking is not Masking.ADDED:
            return "ttb"
        return "ttf" if self.mask_type is DType.F32 else "ttt"

    @property
    def words(self) -> list[str]:
        """The words of an op type that tell variants apart."""
        letters = list(zip("qkv", self.places, strict=True))
        words = [
            f"{''.join(letter for letter, place in letters if place.order == HEADS)}_by_heads",
            f"{''.join(letter for letter, place in letters if not place.whole)}_packed",
            self.masking.value,
            self.mask_type.value if self.mask_type else "",
            "periodic" if self.periodic else "",
            "" if self.masked is Masked.PLAIN else self.masked.value,
            "grouped" if self.grouped else "",
            "banded" if self.banded else "",
            "" if self.joined else "apart",
            "windows" if self.windows else "",
        ]
        return [word for word in words if word and not word.startswith("_")]


def attend(body: Body, variant: Variant) -> str:
    """Append the nodes for inputs x (the queries), k, v and mask. Both sides of the first product
    are multiplied by the root of the scale, since an unscaled product may overflow in fp16."""
    root = body("Sqrt", [body.given("scale", AttributeProto.FLOAT)])
    root = body.convert(root, DType.F32, body.dtype)
    windows = WindowRows(body) if variant.windows else None
    q, k, v = (
        _by_heads(body, name, attribute, place, windows)
        for name, attribute, place in zip(("x", "k", "v"), VIEWS, variant.places, strict=True)
    )
    if variant.grouped:
        sharing = _sharing(body)
        k, v = (body("Gather", [shared, sharing], axis=1) for shared in (k, v))
    scores = body("MatMul", [body("Mul", [q, root]), body("Mul", [k, root])])
    weights = _softmax(body, variant, scores)
    result = body("Transpose", [body("MatMul", [weights, v])], perm=[0, 2, 1, 3])
    if variant.joined:
        width = body("Mul", [body.size(result, 2), body.size(result, 3)])
        result = body.reshape(result, 0, 0, width)
    return result if windows is None else windows.united(result, "x")


def _by_heads(
    body: Body, name: str, attribute: str, place: Place, windows: WindowRows | None
) -> str:
    """An input as [batch, heads, positions, size], keys as [batch, heads, size, positions]."""
    x, keys = body.load(name), name == "k"
    if windows is not None:
        x = windows.divided(x)
    if place.order == HEADS:
        return body("Transpose", [x], perm=[0, 1, 3, 2]) if keys else x
    x = apart(body, x, attribute, place.whole)
    return body("Transpose", [x], perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])


def apart(body: Body, x: str, attribute: str, whole: bool) -> str:
    """The heads [batch, positions, heads, size] that an attribute says the places of, in rows of x;
    `whole`: these have nothing else."""
    view = body.given(attribute)
    pitch = body("Slice", [view, body.ints(0), body.ints(1)])
    x = body.reshape(x, 0, 0, body("Div", [body.size(x, 2, REST), pitch]), pitch)
    if whole:
        return x
    begin = body("Slice", [view, body.ints(1), body.ints(3)])
    end = body("Slice", [view, body.ints(3), body.ints(5)])
    return body("Slice", [x, begin, end, body.ints(2, 3)])


def _sharing(body: Body) -> str:
    """The head of keys and values that each head reads."""
    zero, one = body.integer(0), body.integer(1)
    heads = body.given("heads", AttributeProto.INT)
    group = body("Div", [heads, body.given("key_heads", AttributeProto.INT)])
    return body("Div", [body("Range", [zero, heads, one]), group])


def _softmax(body: Body, variant: Variant, scores: str) -> str:
    """The weights of all keys, in the type of a mask that is added, if it is the wider one."""
    dtype, mask = body.dtype, _repeated(body, scores) if variant.periodic else "mask"
    if variant.masking is Masking.ADDED:
        assert variant.mask_type is not None  # such a mask has one
        dtype = DType.F32 if DType.F32 in (variant.mask_type, dtype) else dtype
        added = body.convert(mask, variant.mask_type, dtype)
        scores = body("Add", [body.convert(scores, body.dtype, dtype), added])
    if (kept := _kept(body, variant, scores, mask)) is not None:
        plain = variant.masked is Masked.PLAIN
        low = (
            body.lowest(dtype)
            if plain
            else body.convert(body("Const", -math.inf), body.dtype, dtype)
        )
        scores = body("Where", [kept, scores, low])
    weights = body.convert(body("Softmax", [scores], axis=-1), dtype, body.dtype)
    if variant.masked is Masked.ZERO:
        zero = body("Const", 0.0)
        weights = body("Where", [body("IsNaN", [weights]), zero, weights])
    return weights


def _repeated(body: Body, scores: str) -> str:
    """The mask for each batch of the scores."""
    batches, period = (
        body("Gather", [body("Shape", [name]), body.integer(0)]) for name in (scores, "mask")
    )
    batch = body("Range", [body.integer(0), batches, body.integer(1)])
    return body("Gather", ["mask", body("Mod", [batch, period])], axis=0)


def _kept(body: Body, variant: Variant, scores: str, mask: str) -> str | None:
    """The keys that a boolean mask and a band leave to each query; None if there is neither."""
    kept = []
    if variant.masking is Masking.KEPT:
        kept.append(mask)
    elif variant.masking is Masking.DROPPED:
        kept.append(body("Not", [mask]))
    if variant.banded:
        kept.append(_within_band(body, scores))
    return body("And", kept) if len(kept) > 1 else kept[0] if kept else None


def _within_band(body: Body, scores: str) -> str:
    """True for the keys of each query's band, [queries, keys]."""
    shape, band = body("Shape", [scores]), body.given("band")
    queries, keys = (body("Gather", [shape, body.integer(i)]) for i in (2, 3))
    first, last, at_end = (body("Gather", [band, body.integer(i)]) for i in range(3))
    zero, one = body.integer(0), body.integer(1)
    shift = body("Mul", [at_end, body("Sub", [keys, queries])])
    query = body("Unsqueeze", [body("Range", [zero, queries, one]), body.ints(1)])
    key = body("Range", [zero, keys, one])
    distance = body("Sub", [key, body("Add", [query, shift])])
    begun, ended = (body("LessOrEqual", pair) for pair in ([first, distance], [distance, last]))
    return body("And", [begun, ended])
