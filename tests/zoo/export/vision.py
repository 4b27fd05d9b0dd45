"""Models of images as their users export them: torchvision's detectors and segmenters, backbones
with a feature pyramid, and models in plain torch that have what such models often have (transposed
convolutions, three dimensions, recurrent heads)."""

from __future__ import annotations

import itertools

import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.ops import FeaturePyramidNetwork

WIDTH = 96  # channels of a text detector's pyramid
PROPOSALS = 40  # regions for a second stage: a test runs it on a CPU

# --- torchvision ----------------------------------------------------------------------------------


class Detector(nn.Module):
    """Boxes, scores and labels, and keypoints where there are any, of one image [3, H, W]."""

    def __init__(self, name: str, **options: object) -> None:
        super().__init__()
        build = getattr(detection, name)
        self.model = build(weights=None, weights_backbone=None, **options)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        found = self.model([image])[0]
        return tuple(
            found[name] for name in ("boxes", "scores", "labels", "keypoints") if name in found
        )


class Segmenter(nn.Module):
    """The label of each pixel: ArgMax over the channels of a segmenter's "out"."""

    def __init__(self, name: str) -> None:
        super().__init__()
        build = getattr(torchvision.models.segmentation, name)
        self.model = build(weights=None, weights_backbone=None, num_classes=21)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.model(image)["out"]
        return scores.softmax(1), scores.argmax(1)


class Flow(nn.Module):
    """The flow from one image to another, after a few updates."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = getattr(torchvision.models.optical_flow, name)(weights=None)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.model(first, second, num_flow_updates=6)[-1]


# --- timm's backbones -----------------------------------------------------------------------------


class Pyramid(nn.Module):
    """The feature pyramid of a backbone: its levels, each with the coarser ones added."""

    def __init__(self, name: str, width: int = 128) -> None:
        super().__init__()
        self.backbone = timm.create_model(name, pretrained=False, features_only=True)
        channels = self.backbone.feature_info.channels()[-4:]
        self.pyramid = FeaturePyramidNetwork(channels, width)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        levels = self.backbone(image)[-4:]
        return tuple(self.pyramid({str(i): level for i, level in enumerate(levels)}).values())


# --- plain torch ----------------------------------------------------------------------------------


def _normalized(convolution: nn.Module, channels: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), activation)


def _double(c: int, k: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    first = _normalized(nn.Conv2d(c, k, 3, padding=1, bias=False), k, nn.ReLU(inplace=True))
    return first.append(
        _normalized(nn.Conv2d(k, k, 3, padding=1, bias=False), k, nn.ReLU(inplace=True))
    )


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015) with padding: transposed convolutions enlarge, and a Concat
    adds the pixels of the same size."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256), labels: int = 2) -> None:
        super().__init__()
        inner = itertools.pairwise(channels)
        self.first = _double(3, channels[0])
        self.down = nn.ModuleList([_double(c, k) for c, k in inner])
        steps = list(itertools.pairwise(channels[::-1]))
        self.larger = nn.ModuleList([nn.ConvTranspose2d(c, k, 2, stride=2) for c, k in steps])
        self.up = nn.ModuleList([_double(2 * k, k) for _, k in steps])
        self.last = nn.Conv2d(channels[0], labels, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.first(image)]
        for stage in self.down:
            levels.append(stage(nn.functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for larger, stage in zip(self.larger, self.up, strict=True):
            x = stage(torch.cat([levels.pop(), larger(x)], 1))
        return self.last(x)


class NnUNetBlock(nn.Module):
    """A block of nnU-Net in three dimensions, between a transposed convolution and a strided
    one."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()

        def stage(c: int, k: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(c, k, 3, stride=stride, padding=1),
                nn.InstanceNorm3d(k, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            )

        self.block = nn.Sequential(stage(channels, channels, 1), stage(channels, channels, 1))
        self.down = stage(channels, 2 * channels, 2)
        self.larger = nn.ConvTranspose3d(2 * channels, channels, 2, stride=2)

    def forward(self, volume: Tensor) -> Tensor:
        block = self.block(volume)
        return torch.cat([block, self.larger(self.down(block))], 1)


class TextDetector(nn.Module):
    """DB (Liao et al., 2020): a pyramid over MobileNetV3, joined to one tensor, and the
    probability of text in each pixel by two transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = timm.create_model(
            "mobilenetv3_large_100", pretrained=False, features_only=True, out_indices=(1, 2, 3, 4)
        )
        channels = self.backbone.feature_info.channels()
        self.inner = nn.ModuleList([nn.Conv2d(c, WIDTH, 1, bias=False) for c in channels])
        self.outer = nn.ModuleList(
            [nn.Conv2d(WIDTH, WIDTH // 4, 3, padding=1, bias=False) for _ in channels]
        )
        inside = WIDTH // 4
        self.head = nn.Sequential(
            _normalized(nn.Conv2d(WIDTH, inside, 3, padding=1, bias=False), inside, nn.ReLU()),
            _normalized(nn.ConvTranspose2d(inside, inside, 2, stride=2), inside, nn.ReLU()),
            nn.ConvTranspose2d(inside, 1, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, image: Tensor) -> Tensor:
        levels = [inner(x) for inner, x in zip(self.inner, self.backbone(image), strict=True)]
        for coarse in (3, 2, 1):
            levels[coarse - 1] = levels[coarse - 1] + nn.functional.interpolate(
                levels[coarse], scale_factor=2.0
            )
        parts = [outer(x) for outer, x in zip(self.outer, levels, strict=True)]
        larger = [
            nn.functional.interpolate(part, scale_factor=float(2**i)) if i else part
            for i, part in enumerate(parts)
        ]
        return self.head(torch.cat(larger[::-1], 1))


class TextRecognizer(nn.Module):
    """CRNN (Shi et al., 2015): convolutions make columns of an image of a line of text, and a
    bidirectional LSTM reads them."""

    def __init__(self, letters: int = 97) -> None:
        super().__init__()

        def stage(c: int, k: int, kernel: int = 3) -> nn.Sequential:
            padding = kernel // 2 if kernel == 3 else 0
            return _normalized(nn.Conv2d(c, k, kernel, padding=padding), k, nn.ReLU(inplace=True))

        self.columns = nn.Sequential(
            *(stage(1, 64), nn.MaxPool2d(2), stage(64, 128), nn.MaxPool2d(2)),
            *(stage(128, 256), stage(256, 256), nn.MaxPool2d((2, 1))),
            *(stage(256, 512), stage(512, 512), nn.MaxPool2d((2, 1)), stage(512, 512, 2)),
        )
        self.reader = nn.LSTM(512, 256, num_layers=2, bidirectional=True)
        self.last = nn.Linear(512, letters)

    def forward(self, line: Tensor) -> Tensor:
        columns = self.columns(line).squeeze(2).permute(2, 0, 1)
        return self.last(self.reader(columns)[0]).log_softmax(2)


class Yolo(nn.Module):
    """A detector as YOLOv5 to v8 are: the Focus of four slices, blocks that split their channels,
    pools in a row, and a neck in both directions."""

    def __init__(self, c: int = 32, outputs: int = 85) -> None:
        super().__init__()
        self.stem = _convolution(12, c, 3)
        self.stages = nn.ModuleList(
            [
                nn.Sequential(_convolution(c << i, 2 * c << i, 3, 2), Halves(2 * c << i))
                for i in range(4)
            ]
        )
        self.pools = Pools(16 * c)
        self.first, self.second = Halves(24 * c, 8 * c), Halves(12 * c, 4 * c)
        self.down = _convolution(4 * c, 4 * c, 3, 2)
        self.third = Halves(12 * c, 8 * c)
        self.heads = nn.ModuleList([nn.Conv2d(k * c, outputs, 1) for k in (4, 8)])

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        corners = [image[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        x = self.stem(torch.cat(corners, 1))
        levels = []
        for stage in self.stages:
            levels.append(x := stage(x))
        coarse = self.pools(levels[3])
        middle = self.first(
            torch.cat([nn.functional.interpolate(coarse, scale_factor=2.0), levels[2]], 1)
        )
        fine = self.second(
            torch.cat([nn.functional.interpolate(middle, scale_factor=2.0), levels[1]], 1)
        )
        middle = self.third(torch.cat([self.down(fine), middle], 1))
        return tuple(head(x).flatten(2) for head, x in zip(self.heads, (fine, middle), strict=True))


class Halves(nn.Module):
    """YOLOv8's block: one half of the channels goes through two convolutions, all parts are
    joined."""

    def __init__(self, c: int, k: int | None = None) -> None:
        super().__init__()
        k = k or c
        half = k // 2
        self.first, self.last = _convolution(c, k, 1), _convolution(3 * half, k, 1)
        self.inner = nn.Sequential(_convolution(half, half, 3), _convolution(half, half, 3))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        return self.last(torch.cat([left, right, right + self.inner(right)], 1))


class Pools(nn.Module):
    """YOLOv5's SPPF: three pools in a row, all joined."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last = _convolution(c, c // 2, 1), _convolution(2 * c, c, 1)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


def _convolution(c: int, k: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(c, k, kernel, stride, kernel // 2, bias=False)
    return _normalized(convolution, k, nn.SiLU(inplace=True))
