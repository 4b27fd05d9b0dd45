"""The forms in which one model is exported: exporter and opset, attention, mask and axes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """One way to export a model.

    `attention` is how the model computes it: "sdpa" (torch's scaled_dot_product_attention) or
    "eager" (products and a softmax); "" where there is none. `mask`: the model has an input
    attention_mask. `dynamic`: the batch, and a text's length, are symbolic.
    """

    exporter: str  # "ts" (TorchScript) or "dynamo"
    opset: int
    attention: str = "sdpa"
    mask: bool = False
    dynamic: bool = False

    def __str__(self) -> str:
        flags = [flag for flag in ("mask", "dynamic") if getattr(self, flag)]
        return ".".join(filter(None, [f"{self.exporter}{self.opset}", self.attention, *flags]))


EXPORTERS = (("ts", 17), ("dynamo", 18), ("dynamo", 23))


def every(masks: tuple[bool, ...] = (False,)) -> Iterator[Form]:
    """All forms, with and without a mask where `masks` says so."""
    for (exporter, opset), attention, mask, dynamic in itertools.product(
        EXPORTERS, ("sdpa", "eager"), masks, (False, True)
    ):
        yield Form(exporter, opset, attention, mask, dynamic)


def some(mask: bool = False) -> Iterator[Form]:
    """Three forms that have each value once or twice; with `mask`, two of them have one."""
    yield Form("ts", 17, "eager", mask=mask)
    yield Form("dynamo", 18, "sdpa", mask=mask, dynamic=True)
    yield Form("dynamo", 23, "sdpa")


def convolutional() -> Iterator[Form]:
    """The forms of a model without attention."""
    for form in some():
        yield dataclasses.replace(form, attention="")


def two(mask: bool = False) -> Iterator[Form]:
    """The forms that today's users write most: TorchScript's, and dynamo's of a symbolic batch."""
    yield Form("ts", 17, "sdpa", dynamic=True)
    yield Form("dynamo", 18, "sdpa", mask=mask)


def decoders() -> Iterator[Form]:
    """`some`, and TorchScript's of a symbolic length, which computes sizes in many nodes."""
    yield from some(mask=True)
    yield Form("ts", 17, "sdpa", mask=True, dynamic=True)


def sized(attention: str = "sdpa") -> tuple[Form, ...]:
    """The two exporters' forms of a model with symbolic sizes."""
    return Form("ts", 17, attention, dynamic=True), Form("dynamo", 18, attention, dynamic=True)


def resizable() -> tuple[Form, ...]:
    """The same of a model without attention."""
    return sized("")
