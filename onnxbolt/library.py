"""The custom-op library of a model: its manifest, its generated sources, and building it."""
from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, helper

from onnxbolt.codegen.artifacts import Progress, Unit, compile_units, link, read_tree, text_digest
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import Instance, instance_name, render, render_unit
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, MAX_TENSORS, MAX_VECTORS, MEAN, STORE
from onnxbolt.errors import InputError
from onnxbolt.kernels.config import ROW_WIDTH, Family, KernelConfig
from onnxbolt.runtime import get_library_path
from onnxbolt.version import __version__

FORMAT = 1
DOMAIN = "com.onnxbolt"
KINDS = ("conv", "conv1d", "gemm", "max_pool", "average_pool", "global_average_pool", "to_nhwc", "to_nchw", "elementwise", "gemm_chain",
         "conv_chain", "squeeze_excite", "resize")
_WEIGHTED = ("conv", "conv1d", "gemm", "gemm_chain", "conv_chain", "squeeze_excite")
_UNIT_SIZE = 6  # kernels per translation unit: CUTLASS's headers cost as much as two kernels, and units compile in parallel


@dataclass(frozen=True)
class OpSpec:
    """An op type of domain com.onnxbolt: what the library has to know of it beyond a node's attributes."""

    name: str
    kind: str  # one of KINDS
    element: DType  # of x and weight, and of the epilogue's tensors
    output: DType
    chain: tuple[str, ...] = ()  # epilogue step names, a final cast among them
    planes: DType | None = None  # where x is NCHW and y NHWC, the type of x
    into: bool = False  # whether it writes into a tensor that earlier nodes began, its last input
    to_nchw: bool = False  # whether a convolution writes y as NCHW

    def __post_init__(self) -> None:
        if self.kind not in KINDS or any(step not in EPILOGUES for step in self.chain):
            raise InputError(f"op {self.name}: kind {self.kind!r} or epilogue {self.chain} is unknown to this version of onnxbolt")
        if max(layer.count("v") for layer in self.operands.split("w")) > MAX_VECTORS or self.operands.count("t") > MAX_TENSORS:
            raise InputError(f"op {self.name} takes more than {MAX_VECTORS} vectors or {MAX_TENSORS} tensors")

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that the kernel computes: the chain without its cast, which is the kernel's output type."""
        return tuple(step for step in self.chain if step not in CASTS.values())

    @property
    def operands(self) -> str:
        """One letter for each input behind x and weight: v, a vector, t, a tensor, or w, the weight of a further product; at the
        end y, what earlier nodes wrote of the output."""
        chain = "".join(EPILOGUES[step].operand[:1] for step in self.chain)
        if self.kind == "squeeze_excite":
            chain = "vwv"  # the bias, the second weight and its bias
        return chain + "y" * self.into

    def products(self, y: Sequence[Any], shapes: Sequence[Sequence[Any]], attributes: Mapping[str, Any]) -> tuple[list[Any], int]:
        """Of a node with weights: the sizes at whose every position each weight is multiplied once, and the values of these weights.

        `y` is the output's shape, `shapes` are those of all inputs; `attributes` are the node's.
        """
        weights = (shapes[1], *(shape for letter, shape in zip(self.operands, shapes[2:], strict=True) if letter == "w"))
        last = 1 if self.kind == "squeeze_excite" else len(y) - 1
        positions = [y[0], *y[2:]] if self.to_nchw else [*y[:last]]
        if MEAN in self.chain:
            positions = [y[0], *_image(shapes[0], shapes[1], attributes)]
        return positions, sum(math.prod(weight) for weight in weights)

    def instance(self, config: KernelConfig) -> Instance:
        """The kernel that a node of this type needs for one row of its configurations."""
        return Instance(config.instance(), self.element, self.output, self.steps)


@dataclass(frozen=True)
class Manifest:
    """What a library holds. `digest` is over all of its sources and ties it to the models that it serves."""

    ops: tuple[OpSpec, ...]
    instances: tuple[Instance, ...]
    archs: tuple[int, ...]
    digest: str


def make_manifest(ops: Iterable[OpSpec], instances: Iterable[Instance]) -> Manifest:
    """Sorted and without repetition, hence the same for the same sets; archs are those of the instances."""
    unique = sorted(set(instances), key=lambda instance: (*_target(instance), instance_name(instance)))
    archs = tuple(sorted({instance.config.arch for instance in unique}))
    manifest = Manifest(_by_name(ops), tuple(unique), archs, "")
    sources = [*generated_sources(manifest).items(), *read_tree(resource_dir("custom_ops")), *read_tree(resource_dir("templates"))]
    return dataclasses.replace(manifest, digest=text_digest([("ops", ops_to_json(manifest.ops)), *sources]))


@functools.cache
def kernel_sources_digest() -> str:
    """Over custom_ops/ and templates/: what a kernel's time depends on besides its configuration, CUTLASS and the compiler."""
    return text_digest([*read_tree(resource_dir("custom_ops")), *read_tree(resource_dir("templates"))])


def generated_sources(manifest: Manifest) -> dict[str, str]:
    """File name to text of everything that is generated for this library."""
    return {unit.name: unit.text for unit in _generated_units(manifest)}


def build(manifest: Manifest, out_path: Path, progress: Progress | None = None, compiled: Mapping[Instance, Path] | None = None) -> None:
    """Compile and link the library at `out_path`, which appears whole or not at all. Raises BuildError, ToolchainError.

    `compiled` holds objects of instances that need not be compiled again, by the same toolchain; what else is in them comes along.
    """
    toolchain, compiled = find_toolchain(), compiled or {}
    missing = dataclasses.replace(manifest, instances=tuple(i for i in manifest.instances if i not in compiled))
    objects = compile_units(units(missing), toolchain, progress)
    link([*objects, *sorted({compiled[i] for i in manifest.instances if i in compiled})], out_path, toolchain)
    if progress:
        progress(f"linked {out_path.name}")


def units(manifest: Manifest) -> list[Unit]:
    """Everything that is compiled for a library, what takes longest first, so that the cores finish together."""
    fixed = [Unit(path.name, path.read_text()) for path in sorted(resource_dir("custom_ops").glob("*.cc"))]
    return sorted([*_generated_units(manifest), *fixed], key=lambda unit: -unit.arch)


def build_for(model: Path | str, progress: Progress | None = None) -> Path:
    """Build the library of a written model beside it and return its path.

    Raises InputError where the model has no fused nodes or was written by another version of onnxbolt.
    """
    from onnxbolt.graph.importer import load_model

    proto = load_model(Path(model))
    manifest = manifest_of_model(proto)
    if not manifest.ops:
        raise InputError(f"{model} has no fused nodes, so it needs no library. Run: onnxbolt optimize")
    if manifest.digest != metadata(proto).get("onnxbolt.digest"):
        raise InputError(f"{model} was written by another version of onnxbolt, whose kernels this one lacks. Run: onnxbolt optimize")
    path = default_library_path(model)
    build(manifest, path, progress)
    return path


default_library_path = get_library_path  # where `optimize` writes is where `session_options` looks


def manifest_of_model(model: ModelProto) -> Manifest:
    """The manifest of a written model, from its fused nodes and the metadata entry onnxbolt.ops.

    Raises InputError where the two do not fit.
    """
    nodes = [node for node in _nodes(model.graph) if node.domain == DOMAIN]
    ops = {op.name: op for op in ops_from_json(metadata(model).get("onnxbolt.ops", "[]"))}
    if unknown := sorted({node.op_type for node in nodes} - set(ops)):
        raise InputError(f"the model's metadata does not describe its op types {', '.join(unknown)}. Run: onnxbolt optimize")
    instances = [ops[node.op_type].instance(config) for node in nodes for config in configs_of_node(node)]
    return make_manifest((ops[name] for name in {node.op_type for node in nodes}), instances)


def configs_of_node(node: NodeProto) -> list[KernelConfig]:
    """The rows of a fused node's configuration table; InputError where it is damaged."""
    numbers = next((list(helper.get_attribute_value(a)) for a in node.attribute if a.name == "configs"), [])
    try:
        return [KernelConfig.from_row(numbers[i:i + ROW_WIDTH]) for i in range(0, len(numbers), ROW_WIDTH)]
    except ValueError as error:
        raise InputError(f"node {node.name}: attribute configs is damaged ({error}). Run: onnxbolt optimize") from error


def metadata_of(manifest: Manifest, precision: str, archs: Sequence[int]) -> dict[str, str]:
    """What a written model says of itself in metadata_props (docs/architecture.md)."""
    return {
        "onnxbolt.format": str(FORMAT), "onnxbolt.version": __version__,
        "onnxbolt.digest": manifest.digest if manifest.ops else "", "onnxbolt.precision": precision,
        "onnxbolt.archs": ",".join(str(arch) for arch in archs), "onnxbolt.ops": ops_to_json(manifest.ops),
    }


def metadata(model: ModelProto) -> dict[str, str]:
    """The model's metadata_props."""
    return {entry.key: entry.value for entry in model.metadata_props}


def weighted_ops(model: ModelProto) -> dict[str, OpSpec]:
    """The op types of a written model whose input 1 is a weight, by name."""
    return {op.name: op for op in ops_from_json(metadata(model).get("onnxbolt.ops", "[]")) if op.kind in _WEIGHTED}


def ops_to_json(ops: Iterable[OpSpec]) -> str:
    """The metadata entry onnxbolt.ops: what of the op types cannot be read from the nodes' attributes."""
    rows = [{"name": op.name, "kind": op.kind, "element": op.element.value, "output": op.output.value, "chain": list(op.chain),
             **({"planes": op.planes.value} if op.planes else {}), **({"into": True} if op.into else {}),
             **({"to_nchw": True} if op.to_nchw else {})} for op in _by_name(ops)]
    return json.dumps(rows, separators=(",", ":"))


def ops_from_json(text: str) -> tuple[OpSpec, ...]:
    """The inverse of `ops_to_json`. Raises InputError for a damaged or unknown text."""
    try:
        return tuple(OpSpec(row["name"], row["kind"], DType(row["element"]), DType(row["output"]), tuple(row["chain"]),
                            DType(row["planes"]) if "planes" in row else None, row.get("into", False),
                            row.get("to_nchw", False))
                     for row in json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the model's metadata entry onnxbolt.ops is damaged ({error}). Run: onnxbolt optimize") from error


def _image(x: Sequence[int], weight: Sequence[int], attributes: Mapping[str, Any]) -> list[int]:
    """Height and width of what a convolution makes of x [N, H, W, C]: of the image that a mean is over, which has a fixed size."""
    strides, pads, dilations = (attributes[name] for name in ("strides", "pads", "dilations"))
    spans = [x[1 + i] + pads[i] + pads[i + 2] - dilations[i] * (weight[1 + i] - 1) - 1 for i in (0, 1)]
    return [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]


def _by_name(ops: Iterable[OpSpec]) -> tuple[OpSpec, ...]:
    unique = sorted(set(ops), key=lambda op: op.name)
    for op, following in itertools.pairwise(unique):
        if op.name == following.name:
            raise InputError(f"op type {op.name} has two meanings: {op} and {following}")
    return tuple(unique)


def _target(instance: Instance) -> tuple[Family, int]:
    """What the kernels of one translation unit share."""
    return instance.config.family, instance.config.arch


def _generated_units(manifest: Manifest) -> list[Unit]:
    units = [Unit("manifest.cc", _manifest_source(manifest))]
    for (family, arch), group in itertools.groupby(manifest.instances, key=_target):
        for i, part in enumerate(_parts(list(group))):
            units.append(Unit(f"{family.name.lower()}_sm{arch}_{i}.cu", render_unit(part), arch))
    return units


def _parts(instances: list[Instance]) -> Iterator[list[Instance]]:
    """Runs of nearly equal length, at most _UNIT_SIZE."""
    size = math.ceil(len(instances) / math.ceil(len(instances) / _UNIT_SIZE))
    for i in range(0, len(instances), size):
        yield instances[i:i + size]


def _manifest_source(manifest: Manifest) -> str:
    summary = {"format": FORMAT, "digest": manifest.digest, "archs": list(manifest.archs), "ops": [op.name for op in manifest.ops]}
    ops = [{"name": op.name, "kind": _camel(op.kind), "element": op.element.onnx, "output": op.output.onnx,
            "epilogue": ",".join(op.steps), "operands": op.operands,
            "planes": op.planes.onnx if op.planes else 0, "stores": STORE in op.chain, "to_nchw": op.to_nchw,
            "means": MEAN in op.chain}
           for op in manifest.ops]
    # descending: the library takes the first architecture that a device runs
    return render("library/manifest.cc.j2", ops=ops, archs=sorted(manifest.archs, reverse=True), json=json.dumps(summary))


def _camel(kind: str) -> str:
    """average_pool -> kAveragePool, as custom_ops/manifest.h spells it."""
    return "k" + "".join(word.capitalize() for word in kind.split("_"))


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of subgraphs among them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _nodes(subgraph)
