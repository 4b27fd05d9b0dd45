"""The share of a model's FLOPs that fused nodes do, and the reasons why it is not more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from onnxbolt.candidates import Refusal
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.bodies import located
from onnxbolt.report.products import Product

# operators that no kernel computes
_KEPT = {
    "DeformConv": "a deformable convolution, whose filter meets pixels at computed positions",
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "a recurrent layer, which stays with ONNX Runtime"),
}
# an op type that contains one of these is a quantized product
_AT_RUN_TIME = ("Integer", "DynamicQuantize")
_QUANTIZED = ("QLinear", "QGemm", "QAttention", "NBits", "Bnb4")


def coverage(products: Sequence[Product], fused_sources: Collection[str]) -> float | None:
    """The fused nodes' share of the products' FLOPs; None if the model has no products.

    `fused_sources` are the source nodes that fused nodes replace, `located`.
    """
    total = sum(product.flops for product in products)
    return sum(p.flops for p in products if _is_fused(p, fused_sources)) / total if total else None


def left_out(
    products: Iterable[Product], fused_sources: Collection[str], refusals: Iterable[Refusal]
) -> Iterator[Refusal]:
    """Refusals for products that no fused node replaces and that matching did not look at."""
    known = {located(refusal.node, refusal.body) for refusal in refusals}
    for product in products:
        seen = not product.left and _key(product) in known
        if not _is_fused(product, fused_sources) and not seen:
            yield Refusal(product.node, product.op, _reason(product), body=product.body)


def nothing_fused(products: Sequence[Product], refusals: Iterable[Refusal]) -> str:
    """One line on why no product was fused: the three reasons that concern most FLOPs."""
    if not products:
        return "the model has no matrix products or convolutions"
    reasons = {
        located(refusal.node, refusal.body): refusal.reason.partition(":")[0]
        for refusal in refusals
    }
    flops: Counter[tuple[str, str]] = Counter()
    for product in products:
        flops[product.op, reasons.get(_key(product), _reason(product))] += product.flops
    return "; ".join(f"{op}: {reason}" for (op, reason), _ in flops.most_common(3))


def _is_fused(product: Product, fused_sources: Collection[str]) -> bool:
    return not product.left and _key(product) in fused_sources


def _key(product: Product) -> str:
    return located(product.node, product.body)


def _reason(product: Product) -> str:
    if product.left:
        return f"inside a body that is not optimized: {product.left}"
    if any(part in product.op for part in _AT_RUN_TIME):
        return "its scales are computed at run time: quantize it statically"
    if any(part in product.op for part in _QUANTIZED):
        return "quantized products stay with ONNX Runtime"
    if product.domain == CONTRIB:
        return "an operator of ONNX Runtime's own domain, which is not fused"
    if product.op in _KEPT:
        return _KEPT[product.op]
    return (
        "no pattern starts with this operator"
        if product.weighted
        else "both factors are computed at run time"
    )
