"""The inputs of a squeeze-and-excitation node besides x: weights and biases stored as the channels
are."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor
from onnxbolt.forms import Form, padded_channels, take


def stored(anchor: Anchor, form: Form) -> list[tuple[str, np.ndarray]]:
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
