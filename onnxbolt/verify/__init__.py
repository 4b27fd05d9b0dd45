"""Stage 9: run the original and the optimized model on the same inputs and compare them, at each of LEVELS.

Graph outputs alone hide faults, so what each fused node computes is also compared with the tensor of the original that it stands for.
Every tensor has its own limit (onnxbolt/tolerances.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from onnxbolt import gpu
from onnxbolt.errors import InputError
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.inlining import inlined
from onnxbolt.options import check_comparison
from onnxbolt.runtime import get_library_path
from onnxbolt.verify import fused, whole
from onnxbolt.verify.feeds import Feeds, graph_inputs, read_feeds, working_feeds
from onnxbolt.verify.models import MEMORY_LIMIT, Level, Models, precision_of, reference, runner, usable
from onnxbolt.verify.result import Row, VerifyResult
from onnxbolt.verify.session import CPU, available_providers

__all__ = ["Feeds", "Row", "VerifyResult", "verify"]

LEVELS: tuple[Level, ...] = (whole.rows, fused.rows)  # each yields its rows for one provider and one set of inputs


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
    memory_limit: int = MEMORY_LIMIT,
) -> VerifyResult:
    """Compare `optimized` with `original` on the CPU and, where a GPU works, on CUDA (the reference with TF32 off).

    `inputs` is an .npz with one array per graph input, else random inputs are drawn from `seed`. `library` (default: the one
    beside `optimized`, where there is one) runs the fused nodes on CUDA; without it their function bodies run. `atol`, `rtol`
    add the elementwise condition |y - y0| <= atol + rtol |y0|. Raises InputError where the models or inputs do not fit
    together, and for bounds or a seed that are none, LibraryError for a library of another model.
    """
    check_comparison(atol, rtol, seed)
    if library is None and not isinstance(optimized, ModelProto) and get_library_path(optimized).exists():
        library = get_library_path(optimized)
    source, result = (m if isinstance(m, ModelProto) else load_model(m) for m in (original, optimized))
    source = inlined(source)  # the form whose tensors fused nodes name
    _same_interface(source, result)
    notes: dict[str, None] = {}
    on_cpu = reference(source, CPU, notes)
    feeds = read_feeds(Path(inputs), source) if inputs else working_feeds(source, on_cpu, seed)
    rows: list[Row] = []
    libraries = []
    for provider in providers if providers is not None else available_providers():
        ours = usable(library, result, provider, notes)
        libraries.append(ours)
        expected = on_cpu if provider == CPU else reference(source, provider, notes)
        candidate = runner(result, provider, notes, ours)
        models = Models(source, result, expected, candidate, ours, (atol, rtol), inputs is not None, memory_limit, notes)
        rows += (row for level in LEVELS for row in level(models, feeds))
    return VerifyResult(precision_of(result), tuple(rows), tuple(notes), _what_ran(result, library, libraries))


def _what_ran(optimized: ModelProto, library: Path | None, used: Sequence[Path | None]) -> str:
    """What computed the optimized model's answers: a verdict on function bodies says nothing of kernels. `used` is by provider."""
    if not any(node.domain == FUSED_DOMAIN for node in optimized.graph.node):
        return "ONNX Runtime's own operators, there are no fused nodes"
    if any(used):
        return f"kernels on {gpu.name()}"
    if gpu.compute_capability() is None:
        return "function bodies only: no GPU here"
    if library is None:
        return "function bodies only: no library"
    return f"function bodies only: {'the library does not run on this GPU' if len(used) > 1 else 'the CUDA provider was not used'}"


def _same_interface(original: ModelProto, optimized: ModelProto) -> None:
    for kind, names in (
        ("inputs", [[v.name for v in graph_inputs(m)] for m in (original, optimized)]),
        ("outputs", [[v.name for v in m.graph.output] for m in (original, optimized)]),
    ):
        if names[0] != names[1]:
            raise InputError(f"the {kind} differ: {', '.join(names[0])} and {', '.join(names[1])}; these are not two forms of one model")
