"""The subgraphs of DETR-R50-E6 that AutoGTCO measures (its Figure 7), with the inputs of its
Table I: the attention of one layer, and encoder and decoder of six layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PIXELS, QUERIES = 1050, 100  # ResNet-50's pixels of an image of 800 x 1333; objects at most
WIDTH, HEADS = 256, 8


class Attention(nn.Module):
    """Queries, keys and values [N, PIXELS, WIDTH] through their projections, attention, and its
    projection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attention(query, key, value, need_weights=False)[0]


def inputs(**lengths: int) -> dict[str, Tensor]:
    """Random tensors [2, length, WIDTH]."""
    return {name: torch.randn(2, length, WIDTH) for name, length in lengths.items()}
