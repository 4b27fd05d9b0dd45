"""The custom-op library of a model: its manifest, its generated sources, and building it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto

from onnxbolt import extensions, names
from onnxbolt.archs import get, nearness
from onnxbolt.codegen.artifacts import (
    Progress,
    Unit,
    compile_units,
    link,
    object_path,
    text_digest,
    unit_key,
)
from onnxbolt.codegen.cache import used
from onnxbolt.codegen.digest import kernel_sources_digest, sources_digest
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import (
    Instance,
    include_dirs_of,
    instance_name,
    render,
    render_unit,
)
from onnxbolt.codegen.resources import EXTENSIONS, NOTICE, installed, resource_dir
from onnxbolt.epilogues import EPILOGUES, MEAN
from onnxbolt.errors import InputError
from onnxbolt.families import FAMILIES
from onnxbolt.graph.importer import load_model
from onnxbolt.opspec import (
    DOMAIN,
    OpSpec,
    by_name,
    configs_of_node,
    ops_from_json,
    ops_to_json,
)
from onnxbolt.runtime import get_library_path
from onnxbolt.version import __version__

FORMAT = 1
# kernels of one library; large models with tables for symbolic dimensions have some hundreds
MOST_KERNELS = 2000
# kernels per translation unit: CUTLASS's headers cost as much as two kernels, and units compile in
# parallel
_UNIT_SIZE = 6


@dataclass(frozen=True)
class Manifest:
    """The contents of a library. `digest` covers all of its sources and ties it to the models that
    it serves; `extensions` are those that its ops and kernels come from."""

    ops: tuple[OpSpec, ...]
    instances: tuple[Instance, ...]
    archs: tuple[int, ...]
    digest: str
    extensions: tuple[str, ...] = ()


def make_manifest(ops: Iterable[OpSpec], instances: Iterable[Instance]) -> Manifest:
    """The manifest, sorted and without repetition, so that equal sets give equal manifests; its
    archs are those of the instances."""
    unique = sorted(
        set(instances), key=lambda instance: (*_target(instance), instance_name(instance))
    )
    archs = tuple(sorted({instance.config.arch for instance in unique}))
    op_types = by_name(ops)
    needed = frozenset[str]().union(
        *(op.extensions for op in op_types), *(instance.extensions for instance in unique)
    )
    manifest = Manifest(op_types, tuple(unique), archs, "", tuple(sorted(needed)))
    parts = {
        "ops": ops_to_json(manifest.ops),
        "generated": sources_digest(generated_sources(manifest).values()),
        "kernels": kernel_sources_digest(manifest.extensions),
    }
    return dataclasses.replace(manifest, digest=text_digest(parts.items()))


def generated_sources(manifest: Manifest) -> dict[str, str]:
    """All generated sources of this library: file names with their text."""
    return {unit.name: unit.text for unit in _generated_units(manifest)}


def build(
    manifest: Manifest,
    out_path: Path,
    progress: Progress | None = None,
    compiled: Mapping[Instance, Path] | None = None,
) -> None:
    """Compile and link the library at `out_path`, with the notice of the licences of its code
    beside it; no partial file is left on errors. Raises BuildError or ToolchainError.

    `compiled` has objects that the same toolchain has compiled, by the instances in them; these are
    linked instead of compiled again, with all else that they contain.
    """
    toolchain, compiled = find_toolchain(), compiled or {}
    missing = dataclasses.replace(
        manifest, instances=tuple(i for i in manifest.instances if i not in compiled)
    )
    objects = compile_units(units(missing), toolchain, progress)
    link(
        [*objects, *sorted({compiled[i] for i in manifest.instances if i in compiled})],
        out_path,
        toolchain,
    )
    shutil.copyfile(NOTICE, notice_path(out_path))
    if progress:
        progress(f"linked {out_path.name}")


def notice_path(library: Path) -> Path:
    """The notice beside a library: out.onnxbolt.so -> out.onnxbolt.notice.txt."""
    return library.with_suffix(".notice.txt")


def cached(manifest: Manifest) -> dict[Instance, Path]:
    """Cached objects of the units that this library was built from, by the instances in them. No
    kernel is in two of them, so that they can be linked together. Raises ToolchainError."""
    toolchain, found = find_toolchain(), dict[Instance, Path]()
    for unit, part in _kernel_units(manifest):
        path = object_path(unit_key(unit, toolchain))
        if path.exists():
            used(path.parent)
            found.update(dict.fromkeys(part, path))
    return found


def units(manifest: Manifest) -> list[Unit]:
    """All translation units of a library, those that take longest first, so that all cores stay
    busy until the end."""
    fixed = [Unit(path.name, path.read_text(encoding="utf-8")) for path in runtime_sources()]
    added = [
        Unit(path.name, path.read_text(encoding="utf-8"), include_dirs=sources.include_dirs)
        for sources in map(EXTENSIONS.__getitem__, manifest.extensions)
        for path in sources.files
    ]
    return sorted([*_generated_units(manifest), *fixed, *added], key=lambda unit: -unit.arch)


def runtime_sources() -> list[Path]:
    """The C++ files that are part of every library, besides its kernels and its manifest."""
    root = resource_dir("custom_ops")
    return sorted([*root.glob("runtime/*.cc"), *root.glob("ops/*/*.cc")])


def build_for(model: Path | str, progress: Progress | None = None) -> Path:
    """Build the library of a written model beside it and return its path.

    Raises InputError where the model has no fused nodes or was written by another version of
    onnxbolt.
    """
    manifest = manifest_of_file(load_model(Path(model)), model)
    path = default_library_path(model)
    build(manifest, path, progress)
    return path


def manifest_of_file(proto: ModelProto, model: Path | str) -> Manifest:
    """The manifest of a written model, read from the file `model`.

    Raises InputError where it has no fused nodes or was written by another version of onnxbolt, and
    as `manifest_of_model` does.
    """
    manifest = manifest_of_model(proto)
    if not manifest.ops:
        raise InputError(
            f"{model} has no fused nodes, so it needs no library. Run: onnxbolt optimize"
        )
    if manifest.digest != metadata(proto).get("onnxbolt.digest"):
        raise InputError(
            f"{model} was written by another version of onnxbolt{_or_of(manifest.extensions)},"
            " whose kernels this one lacks. Run: onnxbolt optimize"
        )
    return manifest


default_library_path = get_library_path  # `optimize` writes and `session_options` looks there


def manifest_of_model(model: ModelProto) -> Manifest:
    """The manifest of a written model, from its fused nodes and its metadata.

    Raises InputError where the two do not fit, for values that no library could hold, and where
    the model comes from an extension that is not installed.
    """
    manifest = manifest_of_nodes(model)
    if manifest.extensions != _extensions(model):
        raise InputError(
            f"the model's metadata entry {names.EXTENSIONS} does not name the extensions that its"
            f" nodes come from ({', '.join(manifest.extensions) or 'none'}). Run: onnxbolt optimize"
        )
    return manifest


def manifest_of_nodes(model: ModelProto) -> Manifest:
    """The manifest of the fused nodes that a model has, whose metadata may describe more. Raises
    InputError as `manifest_of_model` does."""
    nodes = [node for node in _nodes(model.graph) if node.domain == DOMAIN]
    ops = {op.name: op for op in ops_of(model)}
    if unknown := sorted({node.op_type for node in nodes} - set(ops)):
        raise InputError(
            f"the model's metadata does not describe its op types {', '.join(unknown)}. Run:"
            " onnxbolt optimize"
        )
    instances = {
        ops[node.op_type].instance(config) for node in nodes for config in configs_of_node(node)
    }
    if len(instances) > MOST_KERNELS:
        raise InputError(
            f"the model needs {len(instances)} kernels, which would take days to compile; at"
            f" most {MOST_KERNELS} are allowed"
        )
    return make_manifest((ops[name] for name in {node.op_type for node in nodes}), instances)


def metadata_of(manifest: Manifest, precision: str, archs: Sequence[int]) -> dict[str, str]:
    """The entries of a written model's metadata_props (docs/architecture.md)."""
    return {
        "onnxbolt.format": str(FORMAT),
        "onnxbolt.version": __version__,
        "onnxbolt.digest": manifest.digest if manifest.ops else "",
        "onnxbolt.precision": precision,
        "onnxbolt.archs": ",".join(str(arch) for arch in archs),
        "onnxbolt.ops": ops_to_json(manifest.ops),
        **({names.EXTENSIONS: ",".join(manifest.extensions)} if manifest.extensions else {}),
    }


def metadata(model: ModelProto) -> dict[str, str]:
    """The model's metadata_props."""
    return {entry.key: entry.value for entry in model.metadata_props}


def ops_of(model: ModelProto) -> tuple[OpSpec, ...]:
    """The op types that a written model describes. Raises InputError for a damaged description, and
    where the model comes from an extension that is not installed."""
    extensions.load()
    _extensions(model)
    return ops_from_json(metadata(model).get("onnxbolt.ops", "[]"))


def weighted_ops(model: ModelProto) -> dict[str, OpSpec]:
    """The op types of a written model whose input 1 is a weight, by name. Raises the errors of
    `ops_of`."""
    return {op.name: op for op in ops_of(model) if op.op.weighted}


def _extensions(model: ModelProto) -> tuple[str, ...]:
    """The extensions that a written model names."""
    text = metadata(model).get(names.EXTENSIONS)
    return () if text is None else installed("the model", text.split(","))


def _or_of(extensions: Sequence[str]) -> str:
    return f" or of {', '.join(extensions)}" if extensions else ""


def _target(instance: Instance) -> tuple[int, int]:
    """The properties that the kernels of one translation unit share."""
    return instance.config.family.number, instance.config.arch


def _generated_units(manifest: Manifest) -> list[Unit]:
    kernels = (unit for unit, _ in _kernel_units(manifest))
    return [Unit("manifest.cc", _manifest_source(manifest)), *kernels]


def _kernel_units(manifest: Manifest) -> Iterator[tuple[Unit, list[Instance]]]:
    """The units of kernels, each with its instances."""
    for (number, arch), group in itertools.groupby(manifest.instances, key=_target):
        for i, part in enumerate(_parts(list(group))):
            name = f"{FAMILIES[number].name}_sm{arch}_{i}.cu"
            yield Unit(name, render_unit(part), arch, include_dirs_of(part)), part


def _parts(instances: list[Instance]) -> Iterator[list[Instance]]:
    """Consecutive parts of nearly equal length, at most _UNIT_SIZE."""
    size = math.ceil(len(instances) / math.ceil(len(instances) / _UNIT_SIZE))
    for i in range(0, len(instances), size):
        yield instances[i : i + size]


def _manifest_source(manifest: Manifest) -> str:
    ops = [
        {
            "name": op.name,
            "kind": op.kind,
            "first_operand": 2 if op.op.weighted else 1,
            "element": op.element.onnx,
            "output": op.output.onnx,
            "epilogue": ",".join(op.steps),
            "operands": op.operands,
            "nchw_input": op.nchw_input.onnx if op.nchw_input else 0,
            "stores": any(EPILOGUES[step].stores for step in op.chain),
            "to_nchw": op.to_nchw,
            "means": MEAN in op.chain,
            "indices": op.indices.onnx if op.indices else 0,
            "type_of_values": op.values.onnx if op.values else 0,
        }
        for op in manifest.ops
    ]
    # the library takes the first architecture that a GPU runs: the nearest one
    held = sorted(map(get, manifest.archs), key=nearness, reverse=True)
    return render(
        "manifest.cc.j2",
        ops=ops,
        archs=held,
        format=FORMAT,
        digest=manifest.digest,
    )


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes of the graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _nodes(subgraph)
