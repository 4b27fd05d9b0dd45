"""The result of calibration, which a lock file holds: a scale for each tensor that is stored as
codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Point:
    """A choice that a search for precisions compared: how many products have 8 bits, the predicted
    or measured microseconds of the whole model, and its error."""

    precision: str
    products: int
    us: float
    error: float


@dataclass(frozen=True)
class Assigned:
    """The precision of one product: its own time in 8 bits and in floats, and the error of the
    model in which it alone has 8 bits."""

    node: str
    precision: str
    us: float
    floats_us: float
    error: float


@dataclass(frozen=True)
class Scales:
    """The scales of one model, and how they were found.

    `model` is the digest of the model (`digest_of`), `data` that of the calibration data, of which
    there were `batches`. `balanced` has, for a tensor whose channels were balanced, a power of two
    for each channel; `errors` the relative L2 error of each output on the calibration data, against
    the model of floats; `left` the products that stay floats, by name. `floats` is the type of what
    is not quantized. A search for precisions has the points that it compared, `chosen` among them,
    and a decision for each product.
    """

    model: str
    precision: str
    method: str
    batches: int
    data: str
    scales: Mapping[str, float]
    balanced: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    floats: str = "fp16"
    points: tuple[Point, ...] = ()
    chosen: Point | None = None
    decisions: tuple[Assigned, ...] = ()


@dataclass(frozen=True)
class Left:
    """A product that stays a product of floats, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Quantization:
    """A report's account of how a model was quantized: by which scales, whether calibration data
    or a lock file gave them, and what stayed. `model` is the path of the quantized model."""

    scales: Scales
    from_lock: bool
    left: tuple[Left, ...]
    model: str = ""
    max_error: float | None = None

    @property
    def beyond(self) -> tuple[str, ...]:
        """The outputs whose error is above the limit that was asked for."""
        limit, errors = self.max_error, self.scales.errors
        # NaN is above any limit
        return () if limit is None else tuple(n for n in errors if not errors[n] <= limit)
