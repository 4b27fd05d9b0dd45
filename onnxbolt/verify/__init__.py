"""Stage 9: run the original and the optimized model on the same inputs and compare them, at each of
LEVELS.

Graph outputs alone hide faults, so each changed segment is also run on the original's tensors, and
each of our nodes is compared with float64 (levels.py). Every tensor has its own limit: graph
outputs by onnxbolt/tolerances.py, elements of inner tensors by limits.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from onnxbolt import extensions, gpu
from onnxbolt.errors import InputError
from onnxbolt.extra_ops import registered
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.inlining import inlined, with_inner
from onnxbolt.options import Options, Shapes, check_comparison
from onnxbolt.runtime import get_library_path
from onnxbolt.verify import bodies, levels, whole
from onnxbolt.verify.declared import declared, precision_of
from onnxbolt.verify.feeds import Feeds, graph_inputs, read_feeds
from onnxbolt.verify.models import MEMORY_LIMIT, Level, Models, reference, runner, usable
from onnxbolt.verify.points import Point, points
from onnxbolt.verify.result import Row, VerifyResult
from onnxbolt.verify.session import available_providers

__all__ = ["Feeds", "Row", "VerifyResult", "verify"]

# each yields its rows for one provider and one set of inputs
LEVELS: tuple[Level, ...] = (whole.rows, levels.rows, bodies.rows)


def verify(
    original: ModelProto | Path,
    optimized: ModelProto | Path,
    *,
    inputs: str | Path | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    library: Path | None = None,
    providers: Sequence[str] | None = None,
    seed: int = 0,
    min_shapes: Shapes | None = None,
    opt_shapes: Shapes | None = None,
    max_shapes: Shapes | None = None,
    custom_ops: Sequence[str | Path] = (),
    memory_limit: int = MEMORY_LIMIT,
) -> VerifyResult:
    """Compare `optimized` with `original` on the CPU and, where a GPU works, on CUDA (the reference
    with TF32 off).

    `inputs` is an .npz with one array per graph input, else random inputs are drawn from `seed`;
    where dimensions are symbolic, of several sizes (points.py), which `min_shapes`, `opt_shapes`
    and `max_shapes` bound as they do for `optimize`. `library` (default: the one beside
    `optimized`, where there is one) runs the fused nodes on CUDA; without it their function bodies
    run. `custom_ops` are libraries of other operators that the models need. `atol`, `rtol` add the
    elementwise condition |y - y0| <= atol + rtol |y0|. Raises InputError where the models, inputs
    or shapes do not fit together, and for bounds or a seed that are none, LibraryError for a
    library of another model.
    """
    extensions.load()
    check_comparison(atol, rtol, seed)
    sizes = Options(min_shapes=min_shapes, opt_shapes=opt_shapes, max_shapes=max_shapes)
    if (
        library is None
        and not isinstance(optimized, ModelProto)
        and get_library_path(optimized).exists()
    ):
        library = get_library_path(optimized)
    source, result = (
        m if isinstance(m, ModelProto) else load_model(m) for m in (original, optimized)
    )
    source = inlined(source)  # the form whose tensors fused nodes name
    _same_interface(source, result)
    precision = precision_of(source, result)
    given = [Point("", read_feeds(Path(inputs), source))] if inputs else []
    notes: dict[str, None] = {}
    if declared(result) not in ("", precision):
        notes[
            f"compared as {precision}: the metadata says {declared(result)}, but the model"
            " has no tensor of that type"
        ] = None
    rows: list[Row] = []
    libraries = []
    with registered(custom_ops):
        for provider in providers if providers is not None else available_providers():
            libraries.append(usable(library, result, provider, notes))
            expected, candidate = (
                reference(source, provider, notes),
                runner(result, provider, notes, libraries[-1]),
            )
            models = Models(
                source,
                result,
                expected,
                candidate,
                libraries[-1],
                (atol, rtol),
                bool(given),
                memory_limit,
                notes,
            )
            for point in given or points(models, seed, sizes):
                rows += (
                    dataclasses.replace(row, sizes=point.name)
                    for level in LEVELS
                    for row in level(models, point.feeds)
                )
    return VerifyResult(precision, tuple(rows), tuple(notes), _what_ran(result, library, libraries))


def _what_ran(optimized: ModelProto, library: Path | None, used: Sequence[Path | None]) -> str:
    """The code that computed the optimized model's outputs, in words: a verdict on function bodies
    says nothing about kernels. `used` has the library by provider."""
    if not any(node.domain == FUSED_DOMAIN for node in with_inner(optimized.graph.node)):
        return "ONNX Runtime's own operators, because the model has no fused nodes"
    if any(used):
        return f"kernels on {gpu.name()}"
    if gpu.compute_capability() is None:
        return "function bodies only: no GPU here"
    if library is None:
        return "function bodies only: no library"
    if len(used) > 1:
        return "function bodies only: the library does not run on this GPU"
    return "function bodies only: the CUDA provider was not used"


def _same_interface(original: ModelProto, optimized: ModelProto) -> None:
    for kind, names in (
        ("inputs", [[v.name for v in graph_inputs(m)] for m in (original, optimized)]),
        ("outputs", [[v.name for v in m.graph.output] for m in (original, optimized)]),
    ):
        if names[0] != names[1]:
            raise InputError(
                f"the {kind} differ: {', '.join(names[0])} and {', '.join(names[1])}; give"
                " two forms of one model"
            )
