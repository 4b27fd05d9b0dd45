"""A network for images and one of linear layers, with seeded weights, and their models of floats.

    python -m tests.quantized.exports.nets

Needs torch==2.13.0 and onnx.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.quantized.exports import store

WIDTH = 16  # tools leave convolutions of fewer channels in floats


class Cnn(nn.Module):  # type: ignore[misc]
    """A stem with normalization and pooling, a residual, a Concat and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.inner = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.outer = nn.Conv2d(WIDTH, WIDTH, 1)
        self.beside = nn.Conv2d(WIDTH, WIDTH, 1)
        self.classifier = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        stem = functional.relu(self.norm(self.stem(x)))
        pooled = functional.max_pool2d(stem, 3, 1, 1)
        block = functional.relu(self.outer(functional.relu(self.inner(pooled))) + pooled)
        both = torch.cat([functional.relu(self.beside(block)), block], 1)
        return self.classifier(functional.adaptive_avg_pool2d(both, 1).flatten(1))


class Mlp(nn.Module):  # type: ignore[misc]
    """Three linear layers, two of them with an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 32)
        self.third = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.sigmoid(self.second(functional.relu(self.first(x)))))


NETS: dict[str, Callable[[], nn.Module]] = {"cnn": Cnn, "mlp": Mlp}


def net(name: str) -> nn.Module:
    """The network, with the same weights each time, and a normalization that changes something."""
    torch.manual_seed(0)
    made = NETS[name]()
    if isinstance(made, Cnn):
        with torch.no_grad():
            made.norm.running_mean.uniform_(-0.5, 0.5)
            made.norm.running_var.uniform_(0.2, 1.0)
            made.norm.weight.uniform_(0.5, 1.5)
            made.norm.bias.uniform_(-0.5, 0.5)
    return made.eval()


def inputs(name: str) -> list[Tensor]:
    """The samples as tensors."""
    return [torch.from_numpy(x) for x in store.samples(name)]


def main() -> None:
    store.FOLDER.mkdir(exist_ok=True)
    for name in NETS:
        path = store.floats(name)
        torch.onnx.export(
            net(name),
            (inputs(name)[0],),
            str(path),
            input_names=["x"],
            output_names=["y"],
            opset_version=17,
            dynamo=False,
        )
        store.write(path, path.name.removesuffix(".onnx"))
    store.tell("float", "torch", "onnx")


if __name__ == "__main__":
    main()
