"""For each kernel family a small model, optimized so that one of its nodes runs a kernel of that
family: what faults are planted in.

Outputs have about 16,384 rows, or pixels, of 64 channels, or 16,384 columns of few rows: large
enough for a fault of one pixel to vanish in a norm over all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxbolt.archs import get
from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.restore import restore
from onnxbolt.families import Family, KernelConfig, candidates, named
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.library import Manifest, make_manifest, metadata_of
from onnxbolt.match import preparation, quantized
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.cost import fused_us
from onnxbolt.plan.cuts import cover
from onnxbolt.precision import convert
from onnxbolt.precision.widen import widen
from onnxbolt.rewrite import rewrite
from tests.support import Net, planned

ARCH, PRECISION = 90, "fp16"
SAME = [1, 1, 1, 1]
SIDE = 128  # height and width of an image of 16,384 pixels
# the architecture of a family's candidates if ARCH has none: its mma.sync kernels compile for both
_OLDER = 80


@dataclass(frozen=True)
class Prepared:
    """A source model, its optimized form, and what the library of that holds."""

    original: onnx.ModelProto
    optimized: onnx.ModelProto
    manifest: Manifest


def prepare(family: Family[Any], original: onnx.ModelProto | None = None) -> Prepared:
    """`original`, by default the family's model, with a kernel of the family. Raises ValueError
    where it takes none."""
    original = original or MODELS[family]()
    graph = import_model(original)
    infer(graph)
    with planned(family):
        canonicalize(graph)
        preparation.prepare(graph)
        convert(graph, PRECISION, between=quantized.between_codes(graph))
        chosen = plan(graph, cover(graph, [ARCH])[0], [ARCH], "all")
        configs = _configs(chosen, family)
        rewriter = rewrite(graph, chosen.assignment, configs, [ARCH], chosen.sources)
    restore(graph)
    widen(graph)
    manifest = make_manifest(rewriter.ops, rewriter.instances)
    if family not in {instance.config.family for instance in manifest.instances}:
        raise ValueError(f"no node of the model for {family.name} has such a kernel")
    optimized = export_model(
        graph, list(rewriter.functions.values()), metadata_of(manifest, PRECISION, [ARCH])
    )
    return Prepared(original, optimized, manifest)


def _configs(chosen: Plan, family: Family[Any]) -> dict[int, list[KernelConfig]]:
    """The planned configurations; a node that can have a kernel of `family` gets the one of them
    with the best predicted time."""
    configs = dict(chosen.configs)
    for key, problem in chosen.problems.items():
        for arch in (get(ARCH), get(_OLDER)):
            found = [config for config in candidates(problem, arch) if config.family is family]
            if found:
                fastest = min(found, key=lambda config: fused_us(problem, config, arch))
                configs[key] = [dataclasses.replace(fastest, arch=ARCH)]
                break
    return configs


def _gemm(k: int = 256, m: int = 16384, n: int = 64) -> onnx.ModelProto:
    net = Net({"x": (m, k)})
    return net.model(net.node("Relu", net.linear("x", k, n)))


def _gemms(*widths: int) -> onnx.ModelProto:
    """Linear layers with ReLU, `widths` from the first one's input on."""
    net, y = Net({"x": (16384, widths[0])}), "x"
    for k, n in itertools.pairwise(widths):
        y = net.node("Relu", net.linear(y, k, n))
    return net.model(y)


def _pooled(net: Net, y: str) -> onnx.ModelProto:
    """A pooling at the end: what is in front of it lies with its channels last."""
    return net.model(net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))


def _conv() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)})
    return _pooled(net, net.node("Relu", net.conv("x", 64, 64, 3, pads=SAME)))


def _convs(c: int = 64, r: int = 3, n: int = 64, stride: int = 1) -> onnx.ModelProto:
    """A convolution and a 1x1 one behind it."""
    net = Net({"x": (1, c, SIDE * stride, SIDE * stride)})
    y = net.node("Relu", net.conv("x", c, 64, r, pads=[r // 2] * 4, strides=[stride] * 2))
    return _pooled(net, net.node("Relu", net.conv(y, 64, n)))


def _first() -> onnx.ModelProto:
    net = Net({"x": (1, 3, 2 * SIDE, 2 * SIDE)})
    return _pooled(net, net.node("Relu", net.conv("x", 3, 64, 3, pads=SAME, strides=[2, 2])))


def _depthwise() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)})
    y = net.node("Relu", net.conv("x", 64, 64))
    y = net.node("Relu", net.conv(y, 64, 64, 3, pads=SAME, group=64))
    return net.model(net.conv(y, 64, 64))


def _between(op: str, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    """An operator between two convolutions, which keep it in NHWC."""

    def build() -> onnx.ModelProto:
        net = Net({"x": (1, 64, SIDE, SIDE)})
        y = net.node(op, net.conv("x", 64, 64), **attributes)
        return net.model(net.conv(y, 64, 64))

    return build


def _resize() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE // 2, SIDE // 2)})
    y = net.node(
        "Resize",
        net.conv("x", 64, 64),
        "",
        net.const([1, 1, 2, 2]),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    return net.model(net.conv(y, 64, 64))


def _pixel_shuffle() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE // 2, SIDE // 2)})
    y = net.node("DepthToSpace", net.conv("x", 64, 256), blocksize=2)
    return net.model(net.conv(y, 64, 64))


def _grid_sample() -> onnx.ModelProto:
    """An image warped, as flows of pixels do it, by positions within the image: outside of it
    pixels are zero already."""
    net = Net({"x": (1, 64, SIDE, SIDE)})
    at = np.linspace(-1, 1, SIDE, dtype=np.float32)
    grid = np.stack(np.meshgrid(at, at), -1) + net.rng.normal(0, 0.1, (1, SIDE, SIDE, 2))
    inside = net.const(grid.clip(1 / SIDE - 1, 1 - 1 / SIDE))
    y = net.node("GridSample", net.conv("x", 64, 64), inside, mode="bilinear")
    return net.model(net.conv(y, 64, 64))


def _elementwise() -> onnx.ModelProto:
    """A BatchNormalization with ReLU in front of a convolution, of a sum that others read as
    well."""
    net = Net({"x": (1, 64, SIDE, SIDE)})
    y = net.conv("x", 64, 64, 3, pads=SAME)
    z = net.conv(net.node("Relu", net.batchnorm(y, 64)), 64, 64, 3, pads=SAME)
    return net.model(net.conv(net.node("Concat", y, z, axis=1), 128, 64))


def _squeeze_excite() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)})
    y = net.node("Relu", net.conv("x", 64, 64))
    gate = net.conv(net.node("GlobalAveragePool", y), 64, 16)
    gate = net.node("Sigmoid", net.conv(net.node("Relu", gate), 16, 64))
    return net.model(net.conv(net.node("Mul", y, gate), 64, 64))


def _norm() -> onnx.ModelProto:
    """With a residual whose sum others read as well."""
    net = Net({"x": (SIDE * SIDE, 64), "r": (SIDE * SIDE, 64)})
    total = net.node("Add", net.node("Relu", "x"), "r")
    y = net.node("LayerNormalization", total, net.normal(64), net.normal(64))
    return net.model(net.node("Mul", y, total))


def _conv_transpose() -> onnx.ModelProto:
    """Half as high and wide as others' images, since its result is twice as high and wide."""
    net = Net({"x": (1, 64, SIDE // 2, SIDE // 2)})
    y = net.node("Relu", net.conv("x", 64, 64))
    y = net.node("ConvTranspose", y, net.normal(64, 64, 2, 2), net.normal(64), strides=[2, 2])
    return net.model(net.conv(net.node("Relu", y), 64, 64, 3, pads=SAME))


def _conv3d() -> onnx.ModelProto:
    """As many pixels as others' images."""
    net = Net({"x": (1, 64, 4, SIDE // 2, SIDE // 2)})
    y = net.node("Relu", net.node("Conv", "x", net.normal(64, 64, 1, 1, 1, scale=0.1)))
    weight = net.normal(64, 64, 3, 3, 3, scale=0.03)
    y = net.node("Relu", net.node("Conv", y, weight, net.normal(64), pads=[1] * 6))
    return net.model(net.node("Conv", y, net.normal(64, 64, 1, 1, 1, scale=0.1)))


def _group_norm() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)}, 21)
    y = net.conv("x", 64, 64, 3, pads=SAME)
    y = net.node("GroupNormalization", y, net.normal(64), net.normal(64), num_groups=8)
    return net.model(net.conv(net.node("Relu", y), 64, 64, 3, pads=SAME))


def _attention() -> onnx.ModelProto:
    """64 sequences of 256 positions, two heads."""
    net = Net(dict.fromkeys("qkv", (64, 256, 64)))
    heads = net.const([0, 0, 2, 32], "int64")
    q, k, v = (
        net.node("Transpose", net.node("Reshape", net.node("Relu", x), heads), perm=perm)
        for x, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(32**-0.5))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    joined = net.const([0, 0, 64], "int64")
    return net.model(net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), joined))


def _stored() -> onnx.ModelProto:
    """The end of a residual block, which others read as well, and the next one's first layer."""
    net = Net({"x": (1, 64, SIDE, SIDE), "r": (1, 256, SIDE, SIDE)})
    y = net.node("Relu", net.node("Add", net.conv("x", 64, 256), "r"))
    z = net.node("Relu", net.conv(y, 256, 64))
    return net.model(
        *(net.node("MaxPool", end, kernel_shape=[2, 2], strides=[2, 2]) for end in (y, z))
    )


def _coded(net: Net, x: str, zero: int) -> tuple[str, list[str]]:
    """The values of uint8 codes of `x`, and the numbers that make them."""
    numbers = [net.const(0.03), net.const(zero, np.uint8)]
    return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers), numbers


def _weight(net: Net, *shape: int, axis: int) -> str:
    """The values of int8 codes, with a scale for each channel along `axis`."""
    codes = net.const(net.rng.integers(-127, 128, shape), np.int8)
    scales = net.const(net.rng.uniform(2e-4, 4e-4, shape[axis]))
    return net.node("DequantizeLinear", codes, scales, axis=axis)


# ReLU is left out: it makes most codes of some channels 0, with a fault as well as without.


def _quantized_gemm() -> onnx.ModelProto:
    net = Net({"x": (SIDE * SIDE, 256)})
    y = net.node("MatMul", _coded(net, "x", 128)[0], _weight(net, 256, 64, axis=1))
    return net.model(_coded(net, net.node("Add", y, net.normal(64)), 128)[0])


def _quantized_conv() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)})
    weight, bias = _weight(net, 64, 64, 3, 3, axis=0), net.normal(64)
    y = net.node("Conv", _coded(net, "x", 128)[0], weight, bias, pads=SAME)
    return net.model(_coded(net, y, 128)[0])


def _quantized_depthwise() -> onnx.ModelProto:
    net = Net({"x": (1, 64, SIDE, SIDE)})
    weight, bias = _weight(net, 64, 1, 3, 3, axis=0), net.normal(64)
    values = _coded(net, "x", 128)[0]
    y = net.node("Conv", values, weight, bias, pads=SAME, group=64)
    return net.model(_coded(net, y, 128)[0])


MODELS: dict[Family[Any], Callable[[], onnx.ModelProto]] = {
    named("gemm_2x"): _gemm,
    named("gemm_3x"): _gemm,
    named("gemm_sm90"): _gemm,
    named("gemm_rows_sm90"): lambda: _gemm(429),
    named("quantized_gemm_sm90"): _quantized_gemm,
    named("quantized_conv_sm90"): _quantized_conv,
    named("quantized_depthwise"): _quantized_depthwise,
    named("gemm_skinny"): lambda: _gemm(m=16, n=16384),
    named("conv_2x"): _conv,
    named("conv_sm90"): _conv,
    named("conv3d_sm90"): _conv3d,
    named("conv_transpose_sm90"): _conv_transpose,
    named("halo_sm90"): _conv,
    named("stem_sm90"): _first,
    named("depthwise"): _depthwise,
    named("pool"): _between("MaxPool", kernel_shape=[3, 3], pads=SAME),
    named("resize"): _resize,
    named("pixel_shuffle"): _pixel_shuffle,
    named("grid_sample"): _grid_sample,
    named("layout"): _between("MaxPool", kernel_shape=[3, 3], pads=SAME),
    named("elementwise"): _elementwise,
    named("squeeze_excite"): _squeeze_excite,
    named("norm"): _norm,
    named("group_norm"): _group_norm,
    named("attention"): _attention,
    named("attention_sm90"): _attention,
    named("b2b_gemm_sm90"): lambda: _gemms(256, 64, 64),
    named("b2b_gemm_2x"): lambda: _gemms(256, 64, 64),
    named("b2b_gemm_wide_sm90"): lambda: _gemms(256, 256, 64),
    named("b2b_gemm_small"): lambda: _gemms(13, 16, 8),
    named("b2b_stored_sm90"): _stored,
    named("b2b_conv_sm90"): _convs,
    named("b2b_conv_2x"): _convs,
    named("b2b_halo_sm90"): _convs,
    named("b2b_stem_sm90"): lambda: _convs(3, 3, 64, 2),
}
