"""All kinds of changes that may make a model faster; deepening, which costs time, stands apart."""

from __future__ import annotations

from onnxbolt.advice.activation import Activation
from onnxbolt.advice.change import Change
from onnxbolt.advice.channels import Channels
from onnxbolt.advice.export import ComputedShapes, TrainingMode
from onnxbolt.advice.heads import Heads
from onnxbolt.advice.inputs import FixedSizes, Initializers
from onnxbolt.advice.stem import Stem

FASTER: tuple[type[Change], ...] = (
    Initializers,
    FixedSizes,
    TrainingMode,
    ComputedShapes,
    Stem,
    Channels,
    Heads,
    Activation,
)
