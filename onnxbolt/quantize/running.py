"""Runs models of floats on calibration data, one batch after another, in plain ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.graph.lift import default_opset
from onnxbolt.graph.weights import Weights
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.metric import Errors, Metric
from onnxbolt.spelling import option
from onnxbolt.verify.feeds import Feeds, graph_inputs
from onnxbolt.verify.session import RUNTIME_ERRORS, Runner, available_providers

_TOGETHER = 16  # tensors whose values are in memory at once
_BINS = {"entropy": 512, "percentile": 2048}
_QUANTIZED_BINS, _PERCENTILE = 128, 99.999  # as onnxruntime.quantization has them
_AXES_ARE_INPUTS = 18  # opset from which ReduceMax takes its axes as an input


def magnitudes(
    model: ModelProto, large: Weights, data: Data, names: Sequence[str], method: str
) -> dict[str, float]:
    """The magnitude that each tensor's codes reach, by one of onnxruntime.quantization's methods:
    the largest one, or that beyond which few values lie. Raises InputError for a tensor that is not
    finite."""
    if method == "minmax":
        found = _reduced(model, large, data, names, channels=False)
        return {name: float(values) for name, values in found.items()}
    result = dict[str, float]()
    run = _Runs(model, large)
    for first in range(0, len(names), _TOGETHER):
        some = names[first : first + _TOGETHER]
        result |= _thresholds(run, data, some, method)
    # a tensor of which nearly all is 0: a scale that left the rest out would make it one of zeros
    zeros = [name for name in names if not result[name]]
    return result | magnitudes(model, large, data, zeros, "minmax")


def channel_magnitudes(
    model: ModelProto, large: Weights, data: Data, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The largest magnitude of each channel, the last axis."""
    return _reduced(model, large, data, names, channels=True)


def errors(
    model: ModelProto,
    quantized: ModelProto,
    large: Weights,
    data: Data,
    metric: Metric | None = None,
) -> dict[str, float]:
    """The error of each output of the quantized model on the data; with a metric, that of it."""
    runs = _Runs(model, {}), _Runs(quantized, large)
    found = Errors(metric)
    for batch in data:
        before, after = (run(batch) for run in runs)
        found.add(before, after, batch)
    return found.found()


def alone(
    switched: ModelProto,
    large: Weights,
    batch: Feeds,
    units: Mapping[str, Collection[str]],
    metric: Metric | None = None,
) -> dict[str, dict[str, float]]:
    """The errors of the model where only one of `units` is rounded, for each; a unit has the
    switches that are on."""
    run = _Runs(switched, large)
    # some switches belong to no unit, such as those of tensors that two products together round
    every = [v.name for v in graph_inputs(switched) if v.name not in batch]

    def outputs(on: Collection[str]) -> dict[str, np.ndarray]:
        return run({**batch, **{switch: np.array(switch in on) for switch in every}})

    reference, result = outputs(()), dict[str, dict[str, float]]()
    for name, unit in units.items():
        found = Errors(metric)
        found.add(reference, outputs(unit), batch)
        result[name] = found.found()
    return result


class _Runs:
    """A model on the GPU where there is one that runs it, else on the CPU."""

    def __init__(self, model: ModelProto, large: Weights) -> None:
        self._inputs = {value.name for value in graph_inputs(model)}
        providers = reversed(available_providers())  # the CPU is the last resort
        self._runners = [Runner(model, provider, large=large) for provider in providers]

    def __call__(self, feeds: Feeds, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """The values of tensors; none: the outputs. Arrays that are no inputs are labels. Raises
        InputError where no provider runs."""
        feeds = {name: array for name, array in feeds.items() if name in self._inputs}
        while True:
            try:
                return self._runners[0].run(feeds, names)
            except RUNTIME_ERRORS as error:
                if len(self._runners) == 1:
                    raise InputError(
                        f"{option('calibration')}: the model does not run on these inputs: {error}"
                    ) from error
                del self._runners[0]


def _reduced(
    model: ModelProto, large: Weights, data: Data, names: Sequence[str], channels: bool
) -> dict[str, np.ndarray]:
    """The largest magnitudes of tensors, which the model itself finds."""
    if not names:
        return {}
    ends = {name: f"{name}//largest" for name in names}
    run = _Runs(_with_reductions(model, ends, channels), large)
    found = dict[str, np.ndarray]()
    for feeds in data:
        values = run(feeds, list(ends.values()))
        for name, end in ends.items():
            # 0 for a tensor without elements, whose maximum is negative; NaN stays
            found[name] = np.maximum(found.get(name, np.zeros_like(values[end])), values[end])
    _require_finite(found)
    return found


def _with_reductions(model: ModelProto, ends: Mapping[str, str], channels: bool) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    axes: list[str] = []
    by_attribute = channels and (default_opset(model) or 0) < _AXES_ARE_INPUTS
    if channels and not by_attribute:
        first = numpy_helper.from_array(np.zeros(1, np.int64), "rows//axes")
        graph.initializer.append(first)
        axes = [first.name]
    for name, end in ends.items():
        whole = f"{name}//magnitudes"
        graph.node.append(onnx.helper.make_node("Abs", [name], [whole]))
        if channels:
            # all axes but the last one become one
            rows = f"{name}//rows"
            graph.node.extend(_as_rows(whole, rows))
            whole = rows
        largest = f"{name}//maximum"
        reduced = onnx.helper.make_node("ReduceMax", [whole, *axes], [largest], keepdims=0)
        if by_attribute:
            reduced.attribute.append(onnx.helper.make_attribute("axes", [0]))
        graph.node.append(reduced)
        graph.node.extend(_with_faults(name, largest, end))
        graph.output.append(ValueInfoProto(name=end))
    return made


def _with_faults(name: str, largest: str, end: str) -> Iterator[NodeProto]:
    """`largest`, or NaN if some element is not finite: maxima leave NaN out."""
    differences, fault = f"{name}//differences", f"{name}//fault"
    make = onnx.helper.make_node
    yield make("Sub", [name, name], [differences])
    yield make("ReduceSum", [differences], [fault], keepdims=0)
    yield make("Add", [largest, fault], [end])


def _as_rows(name: str, rows: str) -> Iterator[NodeProto]:
    sizes, last = f"{name}//sizes", f"{name}//last"
    make = onnx.helper.make_node
    yield make("Shape", [name], [sizes])
    numbers = {"first": [-1], "end": [np.iinfo(np.int64).max], "axis": [0]}
    for key, values in numbers.items():
        tensor = numpy_helper.from_array(np.array(values, np.int64))
        yield make("Constant", [], [f"{name}//{key}"], value=tensor)
    ends = [f"{name}//{key}" for key in numbers]
    yield make("Slice", [sizes, *ends], [last])
    yield make("Concat", [ends[0], last], [f"{name}//target"], axis=0)
    yield make("Reshape", [name, f"{name}//target"], [rows])


def _thresholds(run: _Runs, data: Data, names: Sequence[str], method: str) -> dict[str, float]:
    """The magnitudes that onnxruntime.quantization finds in histograms of some tensors."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector(
        method, True, _BINS[method], _QUANTIZED_BINS, _PERCENTILE, "same"
    )
    silent = contextlib.redirect_stdout(io.StringIO())  # it prints
    for feeds in data:
        values = run(feeds, names)
        _require_finite(values)
        with silent:
            collector.collect(values)
    with silent:
        found = collector.compute_collection_result()
    return {name: max(abs(float(end)) for end in found[name][:2]) for name in names}


def _require_finite(found: Mapping[str, np.ndarray]) -> None:
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise InputError(
                f"{option('calibration')}: tensor {name} is not finite on these inputs, so that it"
                " has no scale; leave such inputs out"
            )
