"""The benchmark's models as PyTorch's users write them, fp16 and, unless the name says otherwise,
channels last: eager, in a CUDA
graph, and compiled.

Shapes are those of models/, normalization folded into the convolutions likewise; attention is
scaled_dot_product_attention, its three projections are one. Weights are PyTorch's initial ones:
only times are compared. Imports PyTorch, which benchmarks may lack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from benchmarks.pytorch_peer import FIRST, OF_ZOO
from models.mobilenet import ROWS
from models.repvgg import VARIANTS
from models.vgg import DEPTHS
from onnxbolt.tune.sessions import Measure

_WARM_UP = 5
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU to try scripts out
_WIDTH, _HEADS, _INNER, _LAYERS = 768, 12, 3072, 12


# mode, and whether inductor folds constants
COMPILED = {
    "torch.compile max-autotune": ("max-autotune", False),
    "torch.compile max-autotune, freezing": ("max-autotune", True),
    "torch.compile reduce-overhead": ("reduce-overhead", False),
}


def measures(
    model: str, feeds: Mapping[str, Any], ways: Iterable[str]
) -> Iterator[tuple[str, Measure | str]]:
    """Each of `ways` to run `model` on these numpy arrays ("eager", "CUDA graph", those of
    COMPILED), with a function that times runs of it between CUDA events, in microseconds, or why
    it failed."""
    torch.backends.cudnn.benchmark = True
    last = not model.endswith(FIRST)
    module = _module(model.removesuffix(FIRST), feeds)
    module = _channels_last(module) if last else module
    inputs = [_input(array, last) for array in feeds.values()]
    for way in ways:
        try:
            yield way, _timed(_run(way, module, inputs))
        except Exception as error:  # any failure of PyTorch: there are other ways
            yield way, f"failed: {type(error).__name__}: {error}"[:300]


def host_run(
    model: str, names: Iterable[str], benchmark: bool, compiled: bool
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Runs of a model as an application has them, numpy arrays in and out; sizes may vary.
    `compiled`: by torch.compile(dynamic=True)."""
    torch.backends.cudnn.benchmark = benchmark
    module = _channels_last(_module(model, names))
    called = torch.compile(module, dynamic=True) if compiled else module

    @torch.inference_mode()
    def run(feeds: Mapping[str, Any]) -> list[Any]:
        answer = called(*(_input(array) for array in feeds.values()))
        return [tensor.cpu().numpy() for tensor in tree_leaves(answer) if torch.is_tensor(tensor)]

    return run


def export(model: str, feeds: Mapping[str, Any], opset: int, path: Path) -> None:
    """Write the module as PyTorch's exporter has it, in fp16, with the names of `feeds` for its
    inputs."""
    inputs = tuple(_input(array).contiguous() for array in feeds.values())
    with torch.no_grad():
        torch.onnx.export(
            _module(model),
            inputs,
            str(path),
            dynamo=True,
            opset_version=opset,
            input_names=list(feeds),
            external_data=False,
            optimize=True,
        )


def _module(model: str, names: Iterable[str] = ()) -> nn.Module:
    torch.manual_seed(0)
    made = _of_zoo(model.removeprefix(OF_ZOO), names) if OF_ZOO in model else MODELS[model]()
    return made.eval().half().to(_DEVICE)


def _of_zoo(name: str, names: Iterable[str]) -> nn.Module:
    """A model of tests/zoo/export/subjects.py that takes the inputs `names` by position."""
    from tests.zoo.export.__main__ import Bound
    from tests.zoo.export.subjects import SUBJECTS

    leave_plain_masks_out()
    subject = SUBJECTS[name]
    return Bound(subject.build("sdpa"), names, subject.result)


def leave_plain_masks_out() -> None:
    """Have transformers make no masks that exclude nothing, with which scaled_dot_product_attention
    cannot take its flash kernels. By itself it leaves them out when eager, but in some releases not
    while it is compiled or captured."""
    from transformers.masking_utils import (
        AttentionMaskInterface,
        bidirectional_mask_function,
        sdpa_mask,
    )

    def mask(*sizes: Any, **options: Any) -> Tensor | None:
        every = options.get("mask_function") is bidirectional_mask_function
        unpadded = options.get("attention_mask") is None and options.get("local_size") is None
        if every and unpadded and options.get("allow_is_bidirectional_skip", False):
            return None
        made: Tensor | None = sdpa_mask(*sizes, **options)
        return made

    AttentionMaskInterface.register("sdpa", mask)


def _run(way: str, module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    if way == "eager":
        return lambda: module(*inputs)
    if way == "CUDA graph":
        return _captured(lambda: module(*inputs))
    mode, freezing = COMPILED[way]
    torch._dynamo.reset()
    torch._inductor.config.freezing = freezing
    compiled = torch.compile(module, mode=mode)
    return lambda: compiled(*inputs)


# by the number of axes of an image or a volume
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _channels_last(module: nn.Module) -> nn.Module:
    """The module with the weights of its convolutions in NHWC, or in NDHWC."""
    for parameter in module.parameters():
        if parameter.dim() in _LAST:
            layout = _LAST[parameter.dim()]
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return module


def _input(array: Any, last: bool = True) -> Tensor:
    tensor = torch.from_numpy(array).to(_DEVICE)
    tensor = tensor.half() if tensor.is_floating_point() else tensor
    if last and tensor.dim() in _LAST:
        return tensor.contiguous(memory_format=_LAST[tensor.dim()])
    return tensor


@torch.inference_mode()
def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """A CUDA graph of one run, as PyTorch's documentation has it: warmed up on a stream of its
    own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _timed(run: Callable[[], Any]) -> Measure:
    @torch.inference_mode()
    def measure(count: int) -> list[float]:
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(count)
        ]
        for start, end in pairs:
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    measure(_WARM_UP)
    return measure


# --- convolutional networks -----------------------------------------------------------------------


def _conv(c: int, k: int, r: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c, k, r, stride, r // 2, groups=groups)


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


class _Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 to four times the width, beside a shortcut."""

    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(c, width, 1),
            _relu(),
            _conv(width, width, 3, stride),
            _relu(),
            _conv(width, 4 * width, 1),
        )
        self.shortcut = (
            nn.Identity() if c == 4 * width and stride == 1 else _conv(c, 4 * width, 1, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x).add_(self.shortcut(x)), inplace=True)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), _relu(), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            layers.append(_Bottleneck(c, 64 << stage, 2 if stage and not index else 1))
            c = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    c = 3
    for count, width in zip(DEPTHS[16], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [_conv(c, width, 3), _relu()]
            c = width
        layers.append(nn.MaxPool2d(2))
    head = (
        nn.Linear(512 * 49, 4096),
        _relu(),
        nn.Linear(4096, 4096),
        _relu(),
        nn.Linear(4096, 1000),
    )
    return nn.Sequential(*layers, nn.Flatten(), *head)


def repvgg_a0_deploy() -> nn.Module:
    spec = VARIANTS["a0"]
    layers: list[nn.Module] = [_conv(3, spec.stem, 3, 2), _relu()]
    c = spec.stem
    for count, width in zip(spec.blocks, spec.widths, strict=True):
        for index in range(count):
            layers += [_conv(c, width, 3, 1 if index else 2), _relu()]
            c = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


class _SqueezeExcite(nn.Module):
    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            _conv(c, inner, 1),
            _relu(),
            _conv(inner, c, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x) * x


class _InvertedResidual(nn.Module):
    """MobileNetV3's block: expand, depthwise, squeeze, project; added to x where shapes allow
    it."""

    def __init__(self, c: int, row: Any) -> None:
        super().__init__()
        act = _relu if row.activation == "relu" else lambda: nn.Hardswish(inplace=True)
        layers: list[nn.Module] = [] if row.expanded == c else [_conv(c, row.expanded, 1), act()]
        layers += [_conv(row.expanded, row.expanded, row.kernel, row.stride, row.expanded), act()]
        layers += [_SqueezeExcite(row.expanded, row.squeeze)] if row.squeeze else []
        self.body = nn.Sequential(*layers, _conv(row.expanded, row.out, 1))
        self.residual = c == row.out and row.stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y.add_(x) if self.residual else y


def mobilenet_v3_large() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 16, 3, 2), nn.Hardswish(inplace=True)]
    c = 16
    for row in ROWS:
        layers.append(_InvertedResidual(c, row))
        c = row.out
    layers += [_conv(c, 960, 1), nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(
        *layers, nn.Linear(960, 1280), nn.Hardswish(inplace=True), nn.Linear(1280, 1000)
    )


# --- transformers and others ----------------------------------------------------------------------


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, s, _ = x.shape
        q, k, v = self.qkv(x).view(n, s, 3, _HEADS, _WIDTH // _HEADS).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        projected: Tensor = self.proj(found.transpose(1, 2).reshape(n, s, _WIDTH))
        return projected


class _Layer(nn.Module):
    """A transformer's layer; `norm_first` as ViT has it, else as BERT does."""

    def __init__(self, norm_first: bool, epsilon: float) -> None:
        super().__init__()
        self.attention, self.norm_first = _Attention(), norm_first
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH, epsilon) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _INNER), nn.GELU(), nn.Linear(_INNER, _WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = self.norms
        if self.norm_first:
            x = x + self.attention(first(x), mask)
            return x + self.mlp(second(x))
        x = first(x + self.attention(x, mask))
        normalized: Tensor = second(x + self.mlp(x))
        return normalized


class _Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30522, _WIDTH), nn.Embedding(512, _WIDTH)
        self.kinds, self.norm = nn.Embedding(2, _WIDTH), nn.LayerNorm(_WIDTH, 1e-12)
        self.layers = nn.ModuleList(_Layer(False, 1e-12) for _ in range(_LAYERS))
        self.pooler = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(
            self.words(ids) + self.kinds.weight[0] + self.positions.weight[: ids.shape[1]]
        )
        wide = mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, wide)
        return x, torch.tanh(self.pooler(x[:, 0]))


class _Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, 16, 16)
        self.token, self.positions = (
            nn.Parameter(torch.zeros(1, 1, _WIDTH)),
            nn.Parameter(torch.zeros(1, 197, _WIDTH)),
        )
        self.layers = nn.ModuleList(_Layer(True, 1e-6) for _ in range(_LAYERS))
        self.norm, self.head = nn.LayerNorm(_WIDTH, 1e-6), nn.Linear(_WIDTH, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def _mlp(*widths: int, last: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, n in itertools.pairwise(widths):
        layers += [nn.Linear(k, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last())


class _Dcn(nn.Module):
    """Cross layers beside a deep tower, then one logit."""

    def __init__(
        self, width: int = 429, crosses: int = 3, deep: tuple[int, ...] = (256, 64, 16)
    ) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        self.deep, self.logit = _mlp(width, *deep), nn.Linear(width + deep[-1], 1)

    def forward(self, start: Tensor) -> Tensor:
        x = start
        for cross in self.crosses:
            x = torch.addcmul(x, start, cross(x))
        return torch.sigmoid(self.logit(torch.cat([x, self.deep(start)], 1)))


def _nnunet_block() -> nn.Module:
    """The block of benchmarks/nnunet.py."""

    def half() -> list[nn.Module]:
        norm = nn.InstanceNorm3d(32, affine=True)
        return [nn.Conv3d(32, 32, 3, padding=1), norm, nn.LeakyReLU(0.01, inplace=True)]

    return nn.Sequential(*half(), *half())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "repvgg_a0_deploy": repvgg_a0_deploy,
    "mobilenet_v3_large": mobilenet_v3_large,
    "bert_base": _Bert,
    "vit_b16": _Vit,
    "dlrm_mlp": lambda: _mlp(256, 64, 16),
    "dcn_v2": _Dcn,
    "dlrm_bottom": lambda: _mlp(13, 512, 256, 64, 16),
    "nnunet_block": _nnunet_block,
    "dlrm_top": lambda: _mlp(367, 512, 256, 1, last=nn.Sigmoid),
}
