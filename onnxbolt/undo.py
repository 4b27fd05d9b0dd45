"""Takes fused nodes back out of a written model: a node's function body takes its place.

The body is the one that runs where there is no library, so it reads and writes the tensors of its
neighbours as they are stored, packed weights included. The library is linked again without kernels
that no node needs, from the objects that it was built from as far as the cache has them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from onnxbolt import extensions, names
from onnxbolt.codegen.render import Instance
from onnxbolt.domains import FUSED
from onnxbolt.errors import InputError
from onnxbolt.graph.bodies import located
from onnxbolt.graph.facts import facts_of
from onnxbolt.graph.importer import external_files, load_model, tensor_type
from onnxbolt.graph.inlining import unfused, with_inner
from onnxbolt.graph.sizes import Size
from onnxbolt.graph.skeleton import inferred_types
from onnxbolt.inspection import FusedNode, inspect_model
from onnxbolt.library import (
    Manifest,
    build,
    cached,
    manifest_of_file,
    manifest_of_nodes,
    metadata,
    metadata_of,
)
from onnxbolt.library_file import sha256_of
from onnxbolt.output import Output
from onnxbolt.runtime import get_library_path
from onnxbolt.skips import first_word, follows, near
from onnxbolt.spelling import option
from onnxbolt.tune.library import compiled


@dataclass(frozen=True)
class Undone:
    """The fused nodes that were replaced by their bodies, the number of those that are left, and
    the new library's sum; empty if none was written."""

    model: str
    nodes: tuple[FusedNode, ...]
    left: int
    library_sha256: str = ""

    def text(self) -> str:
        """One line for each node that was replaced, then what is left."""
        lines = [
            f"{located(node.name, node.body)}: {', '.join(node.source_nodes) or node.rule}"
            for node in self.nodes
        ]
        library = f"SHA-256 {self.library_sha256}" if self.library_sha256 else "none"
        counts = f"{len(lines)} undone, {self.left} fused nodes left"
        return "\n".join([*lines, f"{self.model}: {counts}; library: {library}"])

    def json(self) -> str:
        """The same as JSON."""
        rows = [
            {
                "name": node.name,
                "rule": node.rule,
                "source_nodes": node.source_nodes,
                "body": node.body,
            }
            for node in self.nodes
        ]
        return json.dumps({**dataclasses.asdict(self), "nodes": rows})


def undo(
    model: str | Path,
    out: str | Path,
    *,
    nodes: str | Sequence[str] = (),
    rules: str | Sequence[str] = (),
    library: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Undone:
    """Write the optimized `model` to `out` with function bodies in place of fused nodes: of those
    with a name, a source node or a tensor among `nodes`, and of those that follow one of `rules`,
    which are rules as reports name them or their first words.

    If `model` has a library beside it, `out` gets one, too, unless `library` is False: linked from
    cached objects; kernels that the cache lacks are compiled. Raises InputError for unknown names
    and rules and for a model that this version of onnxbolt has not written, BuildError if compiling
    fails.
    """
    extensions.load()
    model = Path(model)
    with Output(model, out) as output:
        proto = load_model(model)
        if not any(node.domain == FUSED for node in with_inner(proto.graph.node)):
            raise InputError(f"{model} has no fused nodes, so there is nothing to undo")
        before = manifest_of_file(proto, model)
        found = _asked_for(inspect_model(proto).nodes, _several(nodes), _several(rules))
        result = without(proto, {node.name for node in found})
        output.write(result, {}, bool(external_files(model)))
        after, sha256 = manifest_of_nodes(result), ""
        if library and after.ops and get_library_path(model).exists():
            build(after, output.library, progress, _objects(before, after))
            sha256 = sha256_of(output.library)
        output.commit()
        left = len(inspect_model(result).nodes)
    return Undone(str(out), tuple(found), left, sha256)


def without(model: ModelProto, fused: Collection[str]) -> ModelProto:
    """A written model with function bodies in place of the fused nodes of these names, and with the
    metadata that belong to it."""
    result, before = unfused(model, fused), metadata(model)
    manifest = manifest_of_nodes(result)
    archs = [int(arch) for arch in before["onnxbolt.archs"].split(",") if arch]
    written = metadata_of(manifest, before["onnxbolt.precision"], archs)
    kept = {key: value for key, value in before.items() if key != names.EXTENSIONS}
    onnx.helper.set_model_props(result, kept | written | facts_of(result, _shapes(result)))
    if not manifest.ops:
        imports = [entry for entry in result.opset_import if entry.domain != FUSED]
        del result.opset_import[:]
        result.opset_import.extend(imports)
    return result


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _asked_for(
    fused: Sequence[FusedNode], nodes: Sequence[str], rules: Sequence[str]
) -> list[FusedNode]:
    """The fused nodes of these names and rules. Raises InputError if one of them has none, or if
    nothing is asked for."""
    if not nodes and not rules:
        raise InputError(f"nothing to undo: give {option('node')} or {option('rule')}")
    of_name = {name: [row for row in fused if name in _names(row)] for name in nodes}
    of_rule = {rule: [row for row in fused if follows(row.rule, rule)] for rule in rules}
    known = {name for row in fused for name in _names(row)}
    words = {word for row in fused for word in (row.rule, first_word(row.rule))}
    problems = [
        f"{option('node', name)}: no fused node of the model has this name, replaces a node or"
        f" stands for a tensor of this name{near(name, known)}"
        for name, rows in of_name.items()
        if not rows
    ]
    problems += [
        f"{option('rule', rule)}: no fused node of the model follows this rule{near(rule, words)}"
        for rule, rows in of_rule.items()
        if not rows
    ]
    if problems:
        raise InputError(f"{'; '.join(problems)}. `onnxbolt inspect` lists them")
    chosen = [*of_name.values(), *of_rule.values()]
    return [row for row in fused if any(row in rows for rows in chosen)]


def _names(row: FusedNode) -> tuple[str, ...]:
    return (row.name, *row.source_nodes, *filter(None, row.tensor.split(", ")))


def _objects(before: Manifest, after: Manifest) -> Mapping[Instance, Path]:
    """Cached objects with the kernels of the new library: those that the library before was built
    from or, where some are missing, those of the tuner."""
    found = cached(before)
    if all(instance in found for instance in after.instances):
        return found
    tuned = compiled(after.instances)
    return tuned if len(tuned) > len(found) else found


def _shapes(model: ModelProto) -> dict[str, Sequence[Size] | None]:
    """The shapes of tensors as far as inference knows them."""
    try:
        return {name: tensor_type(kind)[1] for name, kind in inferred_types(model).items()}
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return {}
