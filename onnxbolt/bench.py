"""`onnxbolt bench`: times an optimized model against ONNX Runtime's CUDA execution provider with
the best of its settings, on this machine's GPU.

ONNX Runtime gets the original as it is, the original in the optimized model's precision, and
whatever other model the user names (one that onnxruntime.transformers has optimized, say); of each
the fastest of the settings that tune/sessions.py knows. The optimized model gets the same settings.
All run interleaved, with inputs and outputs bound to the device.

Fused nodes are timed one by one, as many copies of a node side by side as make launching the
session negligible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto, helper

from onnxbolt import archs, gpu
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.extra_ops import registered
from onnxbolt.graph.edit import producer
from onnxbolt.graph.importer import import_model, load_model
from onnxbolt.graph.shapes import infer
from onnxbolt.library import metadata, weighted_ops
from onnxbolt.measurements.benchmark import Benchmark, NodeTime, Side
from onnxbolt.ops.base import Part
from onnxbolt.opspec import DOMAIN, OpSpec, real_channels
from onnxbolt.options import check_comparison
from onnxbolt.precision import LOW, rounded_original
from onnxbolt.runtime import get_library_path
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, Sample, Source, interleave, search
from onnxbolt.tune.submodels import extract, repeat
from onnxbolt.verify.feeds import graph_inputs, random_feeds, read_feeds, working_feeds
from onnxbolt.verify.session import CPU, CUDA, Runner, available_providers

Progress = Callable[[str], None]
RUNS, _ROUNDS, _SEARCH_RUNS, _NODE_RUNS = 200, 10, 20, 20
_COPIES = 32
_LARGE = 2**28  # bytes of inputs and outputs; copies of a node take no more
# attributes of a node that say nothing of its time
_ABOUT = (
    "source_nodes",
    "rule",
    "tensor",
    "joined_tensors",
    "joined_widths",
    "stored_tensor",
    "stored_layout",
    "stored_channel_map",
)


def bench(
    original: Path,
    optimized: Path,
    *,
    also: Sequence[Path] = (),
    runs: int = RUNS,
    inputs: Path | None = None,
    seed: int = 0,
    custom_ops: Sequence[Path] = (),
    progress: Progress = lambda message: None,
) -> Benchmark:
    """Measure each model `runs` times on the local GPU; `custom_ops` are libraries of other
    operators that the models need.

    Raises InputError or CudaError where there is no GPU to do so, and LibraryError where a library
    is missing or does not fit.
    """
    stream = Stream()
    if CUDA not in available_providers():
        raise InputError(
            "bench measures on a GPU, and this onnxruntime has no working CUDA provider: install"
            " onnxruntime-gpu"
        )
    with registered(custom_ops):
        return measure(original, optimized, also, runs, inputs, seed, stream, progress)


def measure(
    original: Path,
    optimized: Path,
    also: Sequence[Path],
    runs: int,
    inputs: Path | None,
    seed: int,
    stream: Stream | None,
    progress: Progress,
) -> Benchmark:
    """As `bench`, on the GPU of `stream`; without one on the CPU, with function bodies instead of
    kernels."""
    check_comparison(None, None, seed)
    first = load_model(original)
    feeds = (
        read_feeds(inputs, first)
        if inputs
        else working_feeds(first, Runner(first, CUDA if stream else CPU), seed)
    )
    ours, result = _race(original, optimized, also, runs, feeds, stream, progress)
    nodes = node_times(load_model(optimized), ours.source.library, feeds, stream)
    return dataclasses.replace(result, nodes=nodes)


def race(
    original: Path,
    optimized: Path,
    feeds: Arrays,
    progress: Progress = lambda message: None,
    stream: Stream | None = None,
) -> Benchmark:
    """Measure both models with these inputs, on the GPU of `stream` or on the CPU without one, and
    no single nodes. Raises InputError or LibraryError where one of them does not run."""
    return _race(original, optimized, (), RUNS, feeds, stream, progress)[1]


def _race(
    original: Path,
    optimized: Path,
    also: Sequence[Path],
    runs: int,
    feeds: Arrays,
    stream: Stream | None,
    progress: Progress,
) -> tuple[Found, Benchmark]:
    """The optimized model's best setting, and the times of all models."""
    models = load_model(original), load_model(optimized)
    for path, model in ((optimized, models[1]), *((path, load_model(path)) for path in also)):
        if {value.name for value in graph_inputs(model)} != feeds.keys():
            raise InputError(
                f"{path}: its inputs differ from those of {original} ({', '.join(feeds)});"
                " compare two forms of the same model"
            )
    progress("looking for the best settings of each model")
    ours = _search(_ours(optimized, models[1]), feeds, stream, _SEARCH_RUNS)
    peers, failed = _search_each(_peers(original, *models, also), feeds, stream)
    progress(f"measuring {len(peers) + 1} models in turn, {runs} times each")
    samples = interleave(
        {name: found.session.measure for name, found in {"": ours, **peers}.items()},
        _ROUNDS,
        -(-runs // _ROUNDS),
    )
    sides = {name: _side(found, samples[name]) for name, found in {"": ours, **peers}.items()}
    return ours, Benchmark(sides.pop(""), tuple(sides.values()), failed)


def _ours(path: Path, model: ModelProto) -> Source:
    return Source(
        f"{path.name} (onnxbolt)",
        path,
        get_library_path(path) if metadata(model).get("onnxbolt.digest") else None,
    )


def _peers(
    path: Path, original: ModelProto, optimized: ModelProto, also: Sequence[Path]
) -> list[Source]:
    found = [Source(path.name, path)]
    precision = metadata(optimized).get("onnxbolt.precision", "")
    if precision in LOW and any(
        tensor.data_type == TensorProto.FLOAT for tensor in original.graph.initializer
    ):
        found.append(
            Source(
                f"{path.name} in {precision}",
                rounded_original(original, precision).SerializeToString(),
            )
        )
    return [
        *found,
        *(Source(other.name if other.name != path.name else str(other), other) for other in also),
    ]


def _search_each(
    sources: Sequence[Source], feeds: Arrays, stream: Stream | None
) -> tuple[dict[str, Found], dict[str, str]]:
    """The best setting of each source that runs, and the reasons why others do not. Raises
    InputError if none runs."""
    found: dict[str, Found] = {}
    failed: dict[str, str] = {}
    for source in sources:
        try:
            found[source.label] = _search(source, feeds, stream, _SEARCH_RUNS)
        except InputError as error:
            failed[source.label] = str(error)
    if not found:
        raise InputError("; ".join(failed.values()))
    return found, failed


def _search(source: Source, feeds: Arrays, stream: Stream | None, runs: int) -> Found:
    """The source's best setting. Raises InputError if ONNX Runtime cannot run it."""
    try:
        return search([source], feeds, stream, runs)
    except RuntimeError as error:
        raise InputError(f"ONNX Runtime cannot run {source.label}: {error}") from error


def _side(found: Found, sample: Sample) -> Side:
    return Side(found.source.label, str(found.setting), sample.median, sample.spread, sample.times)


# --- nodes ----------------------------------------------------------------------------------------


def node_times(
    model: ModelProto, library: Path | None, feeds: Arrays, stream: Stream | None
) -> tuple[NodeTime, ...]:
    """The time of every fused node of `model`, in its order, for inputs of the shapes of `feeds`;
    equal nodes are measured once."""
    graph, weighted = _with_sizes(model, feeds), weighted_ops(model)
    measured: dict[str, float] = {}
    times = []
    for node in graph.nodes:
        if node.domain == DOMAIN and all(_known(t) for t in (*node.inputs, *node.outputs)):
            key = _likeness(node)
            if key not in measured:
                measured[key] = _time(model, graph, node, library, stream)
            times.append(_node_time(node, measured[key], weighted.get(node.op)))
    return tuple(times)


def _with_sizes(model: ModelProto, feeds: Arrays) -> gs.Graph:
    sized = ModelProto()
    sized.CopyFrom(model)
    for value in sized.graph.input:
        if value.name in feeds:
            element = value.type.tensor_type.elem_type
            value.CopyFrom(
                helper.make_tensor_value_info(value.name, element, feeds[value.name].shape)
            )
    # shapes of inner tensors and of outputs may be symbolic in it
    del sized.graph.value_info[:]
    for value in sized.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = import_model(sized)
    infer(graph)
    return graph


def _known(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and all(isinstance(size, int) for size in tensor.shape)


def _likeness(node: gs.Node) -> str:
    attributes = {name: value for name, value in node.attrs.items() if name not in _ABOUT}
    return repr((node.op, sorted(attributes.items()), [list(t.shape) for t in node.inputs]))


def _time(
    model: ModelProto, graph: gs.Graph, node: gs.Node, library: Path | None, stream: Stream | None
) -> float:
    inputs = list({t.name: t for t in node.inputs if not isinstance(t, gs.Constant)}.values())
    single = extract(graph, inputs, node.outputs)
    assert single is not None  # a node's own tensors are a cut
    single.metadata_props.extend(model.metadata_props)
    copies = max(1, min(_COPIES, _LARGE // max(_bytes([*inputs, *node.outputs]), 1)))
    many = repeat(single, copies)
    source = Source(node.name, many.SerializeToString(), library)
    found = _search(source, random_feeds(many), stream, _NODE_RUNS)
    return float(np.median(found.session.measure(_NODE_RUNS))) / copies


def _node_time(node: gs.Node, us: float, weighted: OpSpec | None) -> NodeTime:
    arch = archs.by_name(gpu.local_arch() or "sm_90a")
    output = [int(size) for size in node.outputs[0].shape]
    maker = producer(node.inputs[0])
    read = (
        real_channels(maker.attrs)
        if maker is not None and maker.outputs[0] is node.inputs[0]
        else None
    )
    positions, values = (
        weighted.products(output, [t.shape for t in node.inputs], node.attrs, read)
        if weighted
        else ([], 0)
    )
    flops = 2 * math.prod(positions) * values
    # a stem convolution may read x in fp32, and multiplies it in the type of its weight
    multiplied = node.inputs[1 if weighted else 0]
    rate = arch.flops.get(DType.of(multiplied.dtype) or DType.F32, math.inf)
    least = max(flops / rate, _moved(node) / arch.bandwidth) * 1e6
    return NodeTime(node.name, node.op, tuple(output), us, flops / us * 1e-6, least / us)


def _moved(node: gs.Node) -> float:
    """Bytes that a node reads and writes. For a tensor that is a part of a Concat's result, only
    the node's own channels count (docs/node-format.md)."""
    size, (x, *_), (y, *_) = float(_bytes([*node.inputs, *node.outputs])), node.inputs, node.outputs
    if "channels" in node.attrs:
        begin, end = node.attrs["channels"]
        size -= _bytes([x]) * (1 - (end - begin) / x.shape[-1])
    if "around" in node.attrs:
        size -= _bytes([y]) * sum(node.attrs["around"]) / y.shape[-1]
    # the output is written into the memory of that input
    return size - (_bytes([node.inputs[-1]]) if Part.of(node.op) is Part.NEXT else 0)


def _bytes(tensors: Sequence[gs.Tensor]) -> int:
    return sum(math.prod(t.shape) * np.dtype(t.dtype).itemsize for t in tensors)
