"""SETR (Zheng et al., 2021) in the sizes of AutoGTCO's Table I: a ViT with a decoder of
convolutions."""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

IMAGE, PATCH = 384, 16
LABELS = 19  # the classes of Cityscapes
HIDDEN = 256  # channels of the decoder


class Setr(nn.Module):
    """Labels of each pixel of an image [N, 3, 384, 384]."""

    def __init__(self, width: int, depth: int, heads: int, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = VisionTransformer(
            img_size=IMAGE,
            patch_size=PATCH,
            embed_dim=width,
            depth=depth,
            num_heads=heads,
            mlp_ratio=4096 / width,
            num_classes=0,
            class_token=False,
            global_pool="",
        )
        self.decoder = decoder

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.encoder(image)
        side = IMAGE // PATCH
        return self.decoder(tokens.transpose(1, 2).unflatten(2, (side, side)))


def naive(width: int) -> nn.Sequential:
    """Two 1x1 convolutions and one resize."""
    return nn.Sequential(*_convolution(width, 1), nn.Conv2d(HIDDEN, LABELS, 1), _larger(PATCH))


def pup(width: int) -> nn.Sequential:
    """Progressive upsampling: four 3x3 convolutions, each with a resize by 2."""
    stages = [
        part
        for channels in (width, HIDDEN, HIDDEN, HIDDEN)
        for part in (*_convolution(channels, 3), _larger(2))
    ]
    return nn.Sequential(*stages, nn.Conv2d(HIDDEN, LABELS, 1))


def _convolution(channels: int, kernel: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, HIDDEN, kernel, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(HIDDEN), nn.ReLU()


def _larger(factor: int) -> nn.Upsample:
    return nn.Upsample(scale_factor=factor, mode="bilinear")
