"""The layout rule of convolutions: channels last, padded to whole accesses where that is free."""

from __future__ import annotations

from collections.abc import Sequence

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.families import Stem, reads_nchw
from onnxbolt.forms import CHANNELS_LAST, PLAIN, Form, in_accesses, kept, padded_channels
from onnxbolt.graph.volumes import axes_of, is_of_images
from onnxbolt.ops.base import Surroundings

_FEW = 4  # channels of an image that kernels pack along k, filter positions behind each other


def forms(candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
    """The forms in which a kernel reads x and writes the result."""
    anchor, width = candidate.anchor, candidate.widths[-1]
    alignment = anchor.dtype.alignment
    if anchor.depthwise:  # the result is stored as x is
        form = kept(around.x, width, alignment if around.padded else 1)
        return form, form
    if anchor.grouped:  # padding would move channels to other groups
        return CHANNELS_LAST, CHANNELS_LAST
    writes = Form(True, padded_channels(width, alignment) if around.padded else None)
    return _reads(candidate, around), PLAIN if around.to_nchw else writes


def _reads(candidate: Candidate, around: Surroundings) -> Form:
    """x as it lies, else padded on the way in; of volumes padded in any case."""
    anchor = candidate.anchor
    if around.x == PLAIN and _is_stem(candidate, around):
        return PLAIN
    count = int(anchor.weight.shape[1])
    if not is_of_images(axes_of(anchor.node)):
        return in_accesses(around.x, count, anchor.dtype.alignment)
    if around.x.last:
        return around.x
    few = count <= _FEW and anchor.dtype.bytes == 2
    return Form(True, padded_channels(count, _FEW if few else anchor.dtype.alignment))


def _is_stem(candidate: Candidate, around: Surroundings) -> bool:
    """True if a kernel for few channels in NCHW serves; it has no tensor operands."""
    anchor = candidate.anchor
    if candidate.tensors:
        return False
    alignment = anchor.dtype.alignment
    stored = [-(-count // alignment) * alignment for count in candidate.widths]
    if not around.padded:
        stored[-1] = candidate.widths[-1]
    return reads_nchw(stem_of(anchor, stored, candidate.steps), around.archs)


def stem_of(anchor: Anchor, widths: Sequence[int], steps: tuple[str, ...]) -> Stem:
    """The convolutions of so many channels that begin at `anchor`, as a stem."""
    filters = anchor.weight.shape[1:]
    strides, dilations = (
        tuple(anchor.node.attrs.get(name, [1] * len(filters[1:])))
        for name in ("strides", "dilations")
    )
    return Stem(
        anchor.dtype, tuple(widths), tuple(filters), strides, dilations, anchor.groups, steps
    )
