"""The attributes of an attention's node (docs/node-format.md), which its function body and
custom_ops/ops/attention/attention.cc read."""

from __future__ import annotations

from onnxbolt.ops.attention.found import Band, Masked, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import ROWS, View
from onnxbolt.problems.attention import BAND_LEAST, BAND_MOST

VIEWS = ("q_view", "k_view", "v_view")  # the places of queries, keys and values


def attributes(found: ScaledDotProduct) -> dict[str, object]:
    """All of them; `masking` and `masked` are numbers of C++ (ops/attention/arguments.h)."""
    mask = found.mask
    kinds = {"masking": list(Masking).index(mask.kind)} if mask.tensor is not None else {}
    period = {"mask_period": mask.period} if mask.period else {}
    return {
        "heads": found.heads,
        "key_heads": found.key_heads,
        "value_size": found.v.size,
        "scale": found.scale,
        **_places(found),
        **kinds,
        **period,
        "masked": list(Masked).index(found.masked),
        **({"band": [*bounds(mask.band), int(mask.band.at_end)]} if mask.band else {}),
        **({} if found.joined else {"apart": 1}),
        **({"windows": list(found.windows.numbers)} if found.windows else {}),
    }


def bounds(band: Band) -> tuple[int, int]:
    """The first and last key of a band relative to the query; least and most of C++'s int where
    there is no bound."""
    return (
        BAND_LEAST if band.first is None else band.first,
        BAND_MOST if band.last is None else band.last,
    )


def _places(found: ScaledDotProduct) -> dict[str, list[int]]:
    """Those of what lies in rows."""
    views = zip(VIEWS, (found.q, found.k, found.v), strict=True)
    heads = dict(zip(VIEWS, (found.heads, found.key_heads, found.key_heads), strict=True))
    return {name: place(view, heads[name]) for name, view in views if view.order == ROWS}


def place(view: View, heads: int) -> list[int]:
    """The elements of a group, the first head's group, the first element within a group, and where
    these end."""
    return [view.pitch, view.first, view.lead, view.first + heads, view.lead + view.size]
