"""Makes a quantized model of one of floats, by calibration data or known scales.

The model of floats is first brought to the form in which its products are quantized: batch
normalizations and factors folded, parallel convolutions merged. Its activations are measured in
plain ONNX Runtime; then pairs are written around its products. The result is an ONNX model that any
runtime runs, and the reference of all that follows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.quantized import is_quantized
from onnxbolt.canonicalize.restore import restore
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph import weights
from onnxbolt.graph.exporter import export_apart
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.lift import default_opset
from onnxbolt.graph.overridable import frozen
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.stages import Stages
from onnxbolt.graph.weights import Weights
from onnxbolt.quantize import balance, pairs, running
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.placement import Placement
from onnxbolt.quantize.scales import Left, Scales
from onnxbolt.spelling import option

CODES = {"int8": DType.I8, "fp8": DType.E4M3}
_FP8_OPSET, _FP8_IR = 19, 9
_OVERRIDES_IR = 4  # from which on an initializer that is an input may be overridden
# the passes of canonicalization behind which products have the weights that are quantized
_PASSES = frozenset(
    {
        "activations",
        "batchnorm",
        "branches",
        "constant_fold",
        "conv_form",
        "gemm_form",
        "noops",
        "pad_form",
        "scale_shift",
    }
)


@dataclass(frozen=True)
class Quantized:
    """The quantized model (`large` has the data that its initializers lack), its scales, and the
    products that stay."""

    model: ModelProto
    large: Weights
    scales: Scales
    left: tuple[Left, ...]


class Calibration:
    """A model with calibration data, and what was measured so far.

    Raises InputError for a model or data that cannot be used, and where nothing could be quantized.
    """

    def __init__(self, model: ModelProto, precision: str, data: Data, method: str) -> None:
        self.model, self.precision, self.data, self.method = model, precision, data, method
        self._raised = _raised(model, precision)
        self._balanced = _balanced(self._raised, precision, data)
        self._magnitudes = dict[str, float]()

    @cached_property
    def floats(self) -> tuple[ModelProto, Weights]:
        """The model of floats in the form that is quantized, with data of its own apart."""
        return _exported(_prepared(self._raised, self.precision, self._balanced))

    @cached_property
    def known(self) -> Scales:
        """The facts about model and data, without scales."""
        digests = digest_of(self.model), self.data.digest()
        return Scales(
            digests[0],
            self.precision,
            self.method,
            len(self.data),
            digests[1],
            {},
            self._balanced,
        )

    def placement(self, leave: frozenset[str] = frozenset()) -> Placement:
        """The placement in a graph of its own, but for the products that `leave` names."""
        return _placement(self._raised, self.precision, leave, self._balanced)

    @cached_property
    def _graph(self) -> gs.Graph:
        return _prepared(self._raised, self.precision, self._balanced)

    @cached_property
    def _names(self) -> frozenset[str]:
        products = Placement(self._graph, CODES[self.precision]).products
        return frozenset(product.node.name for product in products)

    def only(self, name: str) -> Placement:
        """The placement where one product alone is quantized; its graph is not to be changed."""
        return Placement(self._graph, CODES[self.precision], self._names - {name})

    def scales(self, placement: Placement) -> dict[str, float]:
        """The scale of each tensor that is stored as codes."""
        names = [[tensor.name for tensor in group] for group in placement.groups]
        new = [name for group in names for name in group if name not in self._magnitudes]
        self._magnitudes |= running.magnitudes(*self.floats, self.data, new, self.method)
        dtype = CODES[self.precision]
        return {
            name: pairs.scale_of(max(self._magnitudes[each] for each in group), dtype)
            for group in names
            for name in group
        }

    def quantized(self, leave: frozenset[str] = frozenset()) -> Quantized:
        """The quantized model, whose errors are not measured yet."""
        placement = self.placement(leave)
        scales = self.scales(placement)
        return _written(placement, replace(self.known, scales=scales, left=tuple(sorted(leave))))

    def switched(self) -> tuple[ModelProto, Weights]:
        """The quantized model with a switch for each tensor and product."""
        placement = self.placement()
        pairs.write(placement, self.scales(placement), switches=True)
        return _exported(placement.graph)


def calibrated(model: ModelProto, precision: str, data: Data, method: str) -> Quantized:
    """The model quantized by calibration data.

    Raises InputError for a model or data that cannot be used.
    """
    made = Calibration(model, precision, data, method).quantized()
    errors = running.errors(model, made.model, made.large, data)
    return replace(made, scales=replace(made.scales, errors=errors))


def quantized(model: ModelProto, scales: Scales) -> Quantized:
    """The model quantized by known scales, which are those of a lock file. Raises InputError where
    they are not this model's."""
    if not scales.scales and scales.chosen is not None:
        return Quantized(model, {}, scales, ())  # the search has left all as it was
    leave = frozenset(scales.left)
    raised = _raised(model, scales.precision)
    placement = _placement(raised, scales.precision, leave, scales.balanced)
    wanted = {tensor.name for group in placement.groups for tensor in group}
    if wanted != set(scales.scales):
        odd = sorted(wanted ^ set(scales.scales))[0]
        raise InputError(
            f"{option('lock')}: its scales are of another version of the model, or of onnxbolt:"
            f" tensor {odd}; calibrate again with {option('calibration')}"
        )
    return _written(placement, scales)


def digest_of(model: ModelProto) -> str:
    """The sum of the model's nodes and weights, by which scales belong to it."""
    found = hashlib.sha256()
    for node in model.graph.node:
        found.update(node.SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        found.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)};".encode())
        found.update(onnx.numpy_helper.to_array(weights.whole(tensor)).tobytes())
    return found.hexdigest()


def _raised(model: ModelProto, precision: str) -> ModelProto:
    """The model in an opset that has the codes."""
    opset = default_opset(model)
    if precision != "fp8" or opset is None or opset >= _FP8_OPSET:
        return model
    bare = ModelProto()
    bare.CopyFrom(model)
    data = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in bare.graph.initializer:
        if weights.is_apart(tensor):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    try:
        raised = onnx.version_converter.convert_version(bare, _FP8_OPSET)
    except Exception as error:  # its errors are of no class of their own
        raise InputError(
            f"{option('precision', precision)} needs opset {_FP8_OPSET}, to which the model of"
            f" opset {opset} cannot be converted ({error}): export it with opset"
            f" {_FP8_OPSET}"
        ) from error
    for tensor in raised.graph.initializer:
        if tensor.name in data:
            tensor.CopyFrom(data[tensor.name])
    raised.ir_version = max(model.ir_version, _FP8_IR)
    # IR 3 lists all initializers as inputs, and later ones mean by it that callers may replace them
    return frozen(raised, True)[0] if model.ir_version < _OVERRIDES_IR else raised


def _balanced(model: ModelProto, precision: str, data: Data) -> dict[str, tuple[int, ...]]:
    """The powers of two by which channels are divided, for tensors between linear pairs."""
    if precision != "int8":
        return {}
    found = balance.pairs(_placement(model, precision))
    floats = _exported(_prepared(model, precision))
    largest = running.channel_magnitudes(*floats, data, list(found))
    powers = {name: balance.exponents(pair, largest[name]) for name, pair in found.items()}
    return {name: each for name, each in powers.items() if any(each)}


def _placement(
    model: ModelProto,
    precision: str,
    leave: frozenset[str] = frozenset(),
    balanced: Mapping[str, tuple[int, ...]] | None = None,
) -> Placement:
    graph = _prepared(model, precision, balanced)
    placement = Placement(graph, CODES[precision], leave)
    if not placement.products:
        why = f": {placement.left[0].reason}" if placement.left else ""
        raise InputError(
            f"{option('precision', precision)}: the model has no product that could be"
            f" quantized{why}"
        )
    return placement


def _prepared(
    model: ModelProto, precision: str, balanced: Mapping[str, tuple[int, ...]] | None = None
) -> gs.Graph:
    """The graph in the form in which products are quantized, with balanced channels, whichever
    products stay."""
    graph = import_model(model)
    if is_quantized(graph):
        raise InputError(
            f"{option('precision', precision)}: the model is quantized already: optimize it with"
            f" {option('precision', 'fp16')}, which keeps its codes"
        )
    infer(graph)
    canonicalize(graph, Stages(lambda name: name not in _PASSES))
    _name(graph)
    if balanced:
        found = balance.pairs(Placement(graph, CODES[precision]))
        for name, powers in balanced.items():
            if name not in found or found[name].channels != len(powers):
                raise InputError(
                    f"{option('lock')}: it balances channels of tensor {name}, which this model"
                    f" does not have so; calibrate again with {option('calibration')}"
                )
            balance.apply(graph, found[name], balanced)
    return graph


def _name(graph: gs.Graph) -> None:
    """Name nodes without a name by their results, as plans do, since placements, switches and lock
    files tell products apart by their names."""
    taken = {node.name for node in graph.nodes}
    for node in graph.nodes:
        if not node.name:
            base = node.outputs[0].name
            names = (f"{base}__{count}" if count > 1 else base for count in itertools.count(1))
            node.name = next(name for name in names if name not in taken)
            taken.add(node.name)


def _written(placement: Placement, scales: Scales) -> Quantized:
    pairs.write(placement, scales.scales)
    model, large = _exported(placement.graph)
    return Quantized(model, large, scales, tuple(placement.left))


def _exported(graph: gs.Graph) -> tuple[ModelProto, Weights]:
    restore(graph)
    return export_apart(graph)
