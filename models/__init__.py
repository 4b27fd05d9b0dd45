"""The models that onnxbolt is measured with, as seeded builders in numpy and onnx alone.

`python -m models resnet50 out.onnx --batch 4` writes one. Convolutional models come with
BatchNormalization folded, except resnet18 and repvgg_* (training form), which keep it, and
densenet121, where it stands before a convolution. repvgg_*_deploy is the same function as repvgg_*,
re-parameterized. The variations of the deploy form are Bolt's: repvgg_a0_deploy_* by activation
(table 4), repvggaug_* deeper by 1x1 convolutions (tables 5 and 6), repvggaug3_* by three of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from models.builder import Builder
from models.concatenating import densenet121, squeezenet1_1
from models.mobilenet import mobilenet_v3_large
from models.recommender import dcn_v2, mlp
from models.repvgg import EVERY, repvgg
from models.resnet import resnet
from models.transformer import bert, vit_b16
from models.vgg import vgg

_REPVGG = ("a0", "a1", "b0")
_BUILDERS: dict[str, Callable[[Builder], None]] = {
    "vgg16": partial(vgg, depth=16),
    "vgg19": partial(vgg, depth=19),
    "resnet18": partial(resnet, depth=18),
    "resnet50": partial(resnet, depth=50),
    "resnext50": partial(resnet, depth=50, groups=32),
    **{f"repvgg_{v}": partial(repvgg, variant=v, deploy=False) for v in _REPVGG},
    **{f"repvgg_{v}_deploy": partial(repvgg, variant=v, deploy=True) for v in _REPVGG},
    **{
        f"repvgg_a0_deploy_{a}": partial(repvgg, variant="a0", deploy=True, activation=a)
        for a in ("gelu", "hard_swish", "softplus")
    },
    **{
        f"repvggaug_{v}_deploy": partial(repvgg, variant=v, deploy=True, augmented=EVERY)
        for v in _REPVGG
    },
    **{
        f"repvggaug_{v}_deploy_hard_swish": partial(
            repvgg, variant=v, deploy=True, activation="hard_swish", augmented=EVERY
        )
        for v in _REPVGG
    },
    "repvggaug3_a0_deploy_hard_swish": partial(
        repvgg, variant="a0", deploy=True, activation="hard_swish", augmented=3
    ),
    "mobilenet_v3_large": mobilenet_v3_large,
    "squeezenet1_1": squeezenet1_1,
    "densenet121": densenet121,
    "bert_base": bert,
    "vit_b16": vit_b16,
    "dlrm_mlp": partial(mlp, widths=(256, 64, 16)),
    "dlrm_bottom": partial(mlp, widths=(13, 512, 256, 64, 16)),
    "dlrm_top": partial(mlp, widths=(367, 512, 256, 1), last="Sigmoid"),
    "dcn_v2": dcn_v2,
}

# models of more than a gigabyte, which no test of all models builds
_LARGE: dict[str, Callable[[Builder], None]] = {
    "bert_large": partial(bert, sequence=512, layers=24, width=1024)
}

NAMES = tuple(_BUILDERS)


def build(
    name: str,
    batch: int | str = 1,
    precision: str = "fp32",
    seed: int = 0,
    opset: int = 17,
    io: str | None = None,
) -> onnx.ModelProto:
    """One of NAMES, or "bert_large"; `batch` is a number or a symbolic dimension's name,
    `precision` "fp32" or "fp16" for weights and arithmetic, `io` the same for the graph's inputs
    and outputs (default: as `precision`). Raises ValueError for anything else.
    """
    builders = _BUILDERS | _LARGE
    if name not in builders:
        raise ValueError(f"model {name!r}: choose one of {', '.join(NAMES)}")
    builder = Builder(batch, precision, seed, opset, io or precision)
    builders[name](builder)
    return builder.model(name)
