"""Kernels of convolutions in NHWC."""

from __future__ import annotations

# the kinds of ops whose nodes they compute: convolutions of volumes, where these are convolutions
# of images, and transposed convolutions as convolutions of more channels, where the pixels of their
# phases lie in rows
KINDS = frozenset(
    {"conv", "conv1d", "conv3d", "conv_transpose", "conv_transpose1d", "conv_transpose3d"}
)
