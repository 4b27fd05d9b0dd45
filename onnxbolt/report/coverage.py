"""How much of a model's work fused nodes do, and why not more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from onnxbolt.candidates import Refusal
from onnxbolt.domains import CONTRIB
from onnxbolt.report.products import Product

# parts of op types
_QUANTIZED = ("Integer", "QLinear", "QGemm", "QAttention", "DynamicQuantize", "NBits", "Bnb4")


def coverage(products: Sequence[Product], fused_sources: Collection[str]) -> float | None:
    """The share of the products' FLOPs that fused nodes took over; None where the model has no
    products.

    `fused_sources` are names of source nodes, as in the attribute `source_nodes`.
    """
    total = sum(product.flops for product in products)
    return sum(p.flops for p in products if _is_fused(p, fused_sources)) / total if total else None


def left_out(
    products: Iterable[Product], fused_sources: Collection[str], refusals: Iterable[Refusal]
) -> Iterator[Refusal]:
    """Refusals of products that no fused node took over and that matching did not look at."""
    known = {refusal.node for refusal in refusals}
    for product in products:
        if not _is_fused(product, fused_sources) and (product.body or product.node not in known):
            yield Refusal(product.node, product.op, _reason(product))


def nothing_fused(products: Sequence[Product], refusals: Iterable[Refusal]) -> str:
    """One line on why no product is in a fused node, the reasons of most FLOPs first."""
    if not products:
        return "the model has no matrix products or convolutions"
    reasons = {refusal.node: refusal.reason.partition(":")[0] for refusal in refusals}
    flops: Counter[tuple[str, str]] = Counter()
    for product in products:
        flops[product.op, reasons.get(product.node, _reason(product))] += product.flops
    return "; ".join(f"{op}: {reason}" for (op, reason), _ in flops.most_common(3))


def _is_fused(product: Product, fused_sources: Collection[str]) -> bool:
    return not product.body and product.node in fused_sources


def _reason(product: Product) -> str:
    if product.body:
        return f"inside of {product.body}, whose body stays as it is"
    if any(part in product.op for part in _QUANTIZED):
        return "quantized products stay with ONNX Runtime"
    if product.domain == CONTRIB:
        return "an operator of ONNX Runtime's own"
    return "no pattern begins with it" if product.weighted else "both factors are computed"
