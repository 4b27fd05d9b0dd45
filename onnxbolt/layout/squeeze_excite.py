"""Nodes of squeeze-and-excitation: their weights and biases are stored as their channels are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.families import KernelConfig
from onnxbolt.graph.functions import Signature
from onnxbolt.layout.carry import Kernels, Origin, Result, Writer
from onnxbolt.layout.form import Form, padded_channels, take
from onnxbolt.layout.places import Operation


def fuse(writer: Writer, candidate: Candidate, configs: Sequence[KernelConfig]) -> None:
    """One node in the place of the candidate's."""
    anchor, form = candidate.anchor, writer.form(candidate.output)
    steps = tuple(link.step for link in candidate.links)
    inputs = [
        writer.get(anchor.x, form),
        *(writer.constant(name, values) for name, values in operands(anchor, form)),
    ]
    attributes: dict[str, object] = {"epilogue_params": [p for step in steps for p in step.params]}
    writer.own(
        Operation(Signature(anchor.kind, anchor.dtype, 4, steps), inputs, attributes),
        Result(candidate.output, form),
        Origin(candidate.rule, anchor.node, candidate.nodes),
        Kernels(configs),
    )


def operands(anchor: Anchor, form: Form) -> list[tuple[str, np.ndarray]]:
    """Names and values of [S, C], float32 [S], [C, S] and float32 [C]; S is padded to accesses of
    16 bytes.

    Padded squeezed channels hold what their activation makes of zero, and meet zeros in the second
    weight.
    """
    squeeze_bias, excite, excite_bias = anchor.constants
    assert excite is not None  # the pattern has looked
    count, channels = int(anchor.weight.shape[0]), int(anchor.weight.shape[1])
    squeezed = padded_channels(count, anchor.dtype.alignment)
    first = take(take(_matrix(anchor.weight), form.channels, 1), squeezed, 0)
    second = take(take(_matrix(excite), squeezed, 1), form.channels, 0)
    return [
        (anchor.weight.name, first),
        (f"{anchor.weight.name}.bias", take(_vector(squeeze_bias, count), squeezed, 0)),
        (excite.name, second),
        (f"{excite.name}.bias", take(_vector(excite_bias, channels), form.channels, 0)),
    ]


def _matrix(weight: gs.Constant) -> np.ndarray:
    values: np.ndarray = weight.values
    return values.reshape(values.shape[:2])


def _vector(bias: gs.Constant | None, count: int) -> np.ndarray:
    return (
        np.zeros(count, np.float32) if bias is None else bias.values.astype(np.float32).reshape(-1)
    )
