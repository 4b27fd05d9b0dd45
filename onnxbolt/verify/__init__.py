"""Stage 9: run the original and the optimized model on the same inputs and compare every output and every fused node.

Graph outputs alone hide faults, so each fused node's output is also compared with the tensor of the original that its
attribute `tensor` names. Every tensor has its own limit (onnxbolt/tolerances.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.inlining import inlined
from onnxbolt.options import check_comparison
from onnxbolt.runtime import get_library_path
from onnxbolt.verify.compare import Comparison
from onnxbolt.verify.feeds import Feeds, graph_inputs, read_feeds, working_feeds
from onnxbolt.verify.result import Row, VerifyResult
from onnxbolt.verify.session import available_providers

__all__ = ["Feeds", "Row", "VerifyResult", "verify"]

MEMORY_LIMIT = 1 << 30  # bytes of tensors held for comparison at a time


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
    comparison = Comparison(source, result, library, (atol, rtol), memory_limit)
    comparison.feeds = read_feeds(Path(inputs), source) if inputs else working_feeds(source, comparison.on_cpu, seed)
    for provider in providers if providers is not None else available_providers():
        comparison.on(provider)
    return comparison.result()


def _same_interface(original: ModelProto, optimized: ModelProto) -> None:
    for kind, names in (
        ("inputs", [[v.name for v in graph_inputs(m)] for m in (original, optimized)]),
        ("outputs", [[v.name for v in m.graph.output] for m in (original, optimized)]),
    ):
        if names[0] != names[1]:
            raise InputError(f"the {kind} differ: {', '.join(names[0])} and {', '.join(names[1])}; these are not two forms of one model")
