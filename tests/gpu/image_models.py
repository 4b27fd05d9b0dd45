"""Small models of operators between convolutions: resizings to sizes of run time, sums behind
them, gates, blocks of pixels, sampled images, deformable attention, products of two tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from tests.support import Net

SAME = [1, 1, 1, 1]
# queries, heads, channels of a head, points, and height and width of each level
QUERIES, HEADS, SIZE, POINTS, LEVELS = 50, 8, 32, 4, ((20, 24), (10, 12), (5, 6))


@dataclass(frozen=True)
class ImageModel:
    """A model, shapes of its inputs to compare it at, and words of op types that it then has."""

    build: Callable[[], ModelProto]
    shapes: Sequence[dict[str, tuple[int, ...]]]
    words: tuple[str, ...]


def _down(net: Net, y: str, c: int, k: int) -> str:
    return net.conv(y, c, k, 3, strides=[2, 2], pads=SAME)


def _pyramid(lateral: str = "conv") -> ModelProto:
    """An image and its coarser one, resized to its size, as FPN has them."""
    net = Net({"x": ("N", 3, "H", "W")})
    fine = net.node("Relu", net.conv("x", 3, 64, 3, pads=SAME, strides=[2, 2]))
    coarse = _down(net, fine, 64, 128)
    to = net.node("Shape", fine)
    first, last = (net.const([i], np.int64) for i in (0, 2))
    sizes = net.node("Slice", to, last, net.const([4], np.int64))
    batch = net.node("Slice", net.node("Shape", coarse), first, last)
    sizes = net.node("Concat", batch, sizes, axis=0)
    resized = net.node("Resize", coarse, "", "", sizes, mode="nearest")
    beside = net.conv(fine, 64, 128)
    if lateral == "pool":
        beside = net.node("MaxPool", beside, kernel_shape=[1, 1])
    return net.model(net.conv(net.node("Add", beside, resized), 128, 64, 3, pads=SAME))


def _text_detector() -> ModelProto:
    """The neck and head of PP-OCR's detector: gates that are added to, images that are resized to
    twice their size and added, a map of one channel."""
    net = Net({"x": ("N", 3, "H", "W")})
    fine = net.node("Relu", net.conv("x", 3, 32, 3, pads=SAME, strides=[2, 2]))
    coarse = _down(net, fine, 32, 64)
    levels = [_gated(net, net.conv(y, c, 96)) for y, c in ((fine, 32), (coarse, 64))]
    up = net.node(
        "Resize",
        levels[1],
        "",
        net.const([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = net.node("Relu", net.conv(net.node("Add", levels[0], up), 96, 24, 3, pads=SAME))
    weight = net.normal(24, 1, 2, 2, scale=0.3)
    y = net.node("ConvTranspose", y, weight, net.normal(1), strides=[2, 2])
    return net.model(net.node("Sigmoid", y))


def _gated(net: Net, y: str) -> str:
    """A tensor, plus itself times the gates of its channels."""
    mean = net.node("GlobalAveragePool", y)
    gate = net.node("HardSigmoid", net.conv(net.node("Relu", net.conv(mean, 96, 24)), 24, 96))
    return net.node("Add", y, net.node("Mul", y, gate))


def _super_resolution() -> ModelProto:
    net = Net({"x": ("N", 3, "H", "W")})
    y = net.node("Relu", net.conv("x", 3, 64, 3, pads=SAME))
    y = net.node("DepthToSpace", net.conv(y, 64, 256, 3, pads=SAME), blocksize=2, mode="CRD")
    y = net.node("LeakyRelu", y, alpha=0.2)
    return net.model(net.conv(y, 64, 3, 3, pads=SAME))


def _given_sizes() -> ModelProto:
    """A mask that is resized to sizes that the caller gives."""
    net = Net({"x": (1, 8, "H", "W"), "size": (2,)}, types={"size": TensorProto.INT64})
    y = net.conv("x", 8, 64, 3, pads=SAME)
    ends = (net.const([i], np.int64) for i in (0, 2))
    sizes = net.node("Concat", net.node("Slice", net.node("Shape", y), *ends), "size", axis=0)
    return net.model(net.conv(net.node("Resize", y, "", "", sizes, mode="linear"), 64, 8))


def _warped() -> ModelProto:
    net = Net({"x": (2, 16, 40, 44), "grid": (2, 40, 44, 2)})
    y = net.node("GridSample", net.conv("x", 16, 64), "grid", mode="bilinear")
    return net.model(net.conv(y, 64, 16))


def _deformable() -> ModelProto:
    """The cross attention of a detector's decoder, as transformers export it."""
    count, channels = len(LEVELS), HEADS * SIZE
    rows = sum(h * w for h, w in LEVELS)
    net = Net(
        {
            "x": ("N", rows, channels),
            "at": ("N", QUERIES, HEADS, count, POINTS, 2),
            "scores": ("N", QUERIES, HEADS, count * POINTS),
        }
    )

    def sizes(*values: int) -> str:
        return net.const(values, np.int64)

    value = net.node("Reshape", net.linear("x", channels, channels), sizes(0, 0, HEADS, SIZE))
    parts, first = [], 0
    for level, (h, w) in enumerate(LEVELS):
        image = net.node("Slice", value, sizes(first), sizes(first + h * w), sizes(1))
        image = net.node("Reshape", image, sizes(0, 0, -1))
        image = net.node("Transpose", image, perm=[0, 2, 1])
        image = net.node("Reshape", image, sizes(-1, SIZE, h, w))
        at = net.node("Gather", "at", net.const(level, np.int64), axis=3)
        at = net.node("Transpose", at, perm=[0, 2, 1, 3, 4])
        at = net.node("Reshape", at, sizes(-1, QUERIES, POINTS, 2))
        sampled = net.node("GridSample", image, at, mode="bilinear")
        parts.append(net.node("Unsqueeze", sampled, sizes(-2)))
        first += h * w
    together = net.node("Reshape", net.node("Concat", *parts, axis=-2), sizes(0, SIZE, QUERIES, -1))
    weights = net.node("Transpose", net.node("Softmax", "scores", axis=-1), perm=[0, 2, 1, 3])
    weights = net.node("Reshape", weights, sizes(-1, 1, QUERIES, count * POINTS))
    total = net.node("ReduceSum", net.node("Mul", together, weights), sizes(-1), keepdims=0)
    total = net.node("Reshape", total, sizes(-1, channels, QUERIES))
    return net.model(net.linear(net.node("Transpose", total, perm=[0, 2, 1]), channels, 64))


def _images(*sizes: tuple[int, int]) -> list[dict[str, tuple[int, ...]]]:
    return [{"x": (2, 3, h, w)} for h, w in sizes]


def _correlation() -> ModelProto:
    """Each feature of an image with each of another one, as optical flow compares them. Features
    are few, since images of usual sizes are large."""
    net = Net({"x": (1, 3, "H", "W"), "y": (1, 3, "h", "w")})
    shape = net.const([1, 64, -1], np.int64)
    eighths = (net.node("Relu", net.conv(i, 3, 64, 3, pads=SAME, strides=[8, 8])) for i in "xy")
    features = (
        net.node("Relu", net.conv(i, 64, 64, 3, pads=SAME, strides=[4, 4])) for i in eighths
    )
    first, second = (net.node("Reshape", each, shape) for each in features)
    return net.model(net.node("MatMul", net.node("Transpose", first, perm=[0, 2, 1]), second))


def _similarity() -> ModelProto:
    """Embeddings of 64 values with 48 others, both of which a kernel of ours has just written."""
    net = Net({"x": ("images", 64), "y": (48, 64)})
    first, second = (net.node("Relu", net.linear(each, 64, 64)) for each in "xy")
    scores = net.node("MatMul", first, net.node("Transpose", second, perm=[1, 0]))
    return net.model(net.node("Mul", scores, net.const(0.125)))


def _masks() -> ModelProto:
    """Queries by the features of their image, both of which a kernel of ours has just written."""
    net = Net({"q": ("N", 100, 64), "x": ("N", 3, 24, 20)})
    queries = net.linear("q", 64, 64)
    features = net.node("Relu", net.conv("x", 3, 64, 3, pads=SAME))
    return net.model(net.node("Einsum", queries, features, equation="bqc,bchw->bqhw"))


def _products() -> ModelProto:
    """A product for each batch, of rows that are no whole tile, with steps behind it."""
    net = Net({"x": ("N", "M", 72), "y": ("L", 44, 72), "residual": ("N", "M", 44)})
    first, second = (net.node("Relu", net.linear(each, 72, 72)) for each in "xy")
    product = net.node("MatMul", first, net.node("Transpose", second, perm=[0, 2, 1]))
    product = net.node("Add", net.node("Mul", product, net.const(0.125)), net.normal(44))
    return net.model(net.node("Add", net.node("Relu", product), "residual"))


def _sizes_of_products(*sizes: tuple[int, int, int]) -> list[dict[str, tuple[int, ...]]]:
    """By the batches of y, of x, and the rows of x."""
    return [
        {"x": (n, m, 72), "y": (count, 44, 72), "residual": (n, m, 44)} for count, n, m in sizes
    ]


MODELS = {
    "pyramid": ImageModel(_pyramid, _images((64, 96), (45, 83), (32, 32)), ("_like_",)),
    "sum of a pyramid": ImageModel(
        lambda: _pyramid("pool"), _images((64, 96), (45, 83)), ("_like_Add_",)
    ),
    "text detector": ImageModel(
        _text_detector,
        _images((64, 96), (128, 32), (4, 64)),
        ("_scales_Add_", "SqueezeExcite_Relu_HardSigmoid_Add_", "DepthToSpace_nhwc_dcr_Sigmoid_"),
    ),
    "super resolution": ImageModel(
        _super_resolution, _images((32, 48), (17, 23)), ("DepthToSpace_nhwc_crd_LeakyRelu_",)
    ),
    "given sizes": ImageModel(
        _given_sizes,
        [{"x": (1, 8, 20, 24), "size": (2,)}, {"x": (1, 8, 7, 5), "size": (2,)}],
        ("_given_",),
    ),
    "warped": ImageModel(
        _warped, [{"x": (2, 16, 40, 44), "grid": (2, 40, 44, 2)}], ("GridSample_nhwc_linear_",)
    ),
    "correlation": ImageModel(
        _correlation,
        [
            {"x": (1, 3, 384, 320), "y": (1, 3, 384, 320)},
            {"x": (1, 3, 200, 112), "y": (1, 3, 140, 176)},
            {"x": (1, 3, 1, 1), "y": (1, 3, 640, 520)},
        ],
        ("FusedGemm_",),
    ),
    "similarity": ImageModel(
        _similarity, [{"x": (m, 64), "y": (48, 64)} for m in (1, 7, 300)], ("FusedGemm_Scale_",)
    ),
    "masks": ImageModel(
        _masks,
        [{"q": (n, 100, 64), "x": (n, 3, 24, 20)} for n in (1, 2, 7)],
        ("FusedBatchedGemm_",),
    ),
    "products of batches": ImageModel(
        _products,
        _sizes_of_products((3, 3, 130), (1, 5, 17), (9, 9, 1), (2, 2, 500)),
        ("FusedBatchedGemm_Scale_Bias_Relu",),
    ),
    "deformable attention": ImageModel(_deformable, [], ("DeformableAttention_",)),
}


def feeds(model: ModelProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Inputs of these shapes; sizes and positions that make sense."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = shapes[value.name]
        if value.name == "size":
            found[value.name] = np.array([shapes["x"][2] * 3 // 2, 33], np.int64)
        elif value.name in ("grid", "at"):
            found[value.name] = rng.uniform(-1.2, 1.2, shape).astype(np.float32)
        else:
            found[value.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def op_types(path: str) -> set[str]:
    """The op types of our domain in a written model."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return {node.op_type for node in nodes if node.domain == "com.onnxbolt"}
