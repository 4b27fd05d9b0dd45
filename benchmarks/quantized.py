"""Products of codes of 8 bits, fp8 and int8, against our own fp16 kernels and PyTorch's bare
products, in one run.

    # all rows; writes results/quantized-<gpu>.json
    python -m benchmarks.quantized
    python -m benchmarks.quantized --shapes 6304x3072x768,"56x56 64" --append

GEMMs of transformers have a bias, an activation and a result of codes, those of PyTorch nothing:
`torch._scaled_mm` with and without fast accumulation, its result in 16 and in 8 bits, and
`torch._int_mm`; of each the fastest form counts. Convolutions are ResNet-50's at batch 32, in int8,
residuals of codes included; its first one reads 3 channels, which kernels of codes do not. All
kernels of ours are tuned, those of fp16 among all families. Both sides are timed as in
benchmarks/gemm.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import conv, gemm, peers
from benchmarks.columns import FAST_SUMS, FP8_PRODUCT
from benchmarks.common import Row
from benchmarks.racing import (
    Entry,
    Ours,
    Tuned,
    against,
    fastest,
    medians,
    parser,
    run,
    say,
    take_turns,
)
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD, ADD_CODES, DEQUANTIZE, QUANTIZE
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import ConvProblem, GemmProblem, QuantizedConvProblem, QuantizedGemmProblem
from onnxbolt.tune.sessions import Measure

# M, N, K: ViT-B's at batch 32, BERT's at 32x40, BERT-large's at 32x512, and a large square
SHAPES = (
    (6304, 2304, 768),
    (6304, 768, 768),
    (6304, 3072, 768),
    (6304, 768, 3072),
    (1280, 2304, 768),
    (1280, 3072, 768),
    (1280, 768, 3072),
    (16384, 4096, 1024),
    (16384, 1024, 4096),
    (8192, 8192, 8192),
)
WIDENING = ((6304, 3072, 768), (1280, 3072, 768), (16384, 4096, 1024))  # GELU follows these
_RELU, _GELU = ("Bias", "Relu"), ("Bias", "GeluErf")
FP8, INT8 = DType.E4M3, DType.I8
_WORDS = {FP8: "fp8", INT8: "int8"}
_FIRST_CHANNELS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    return run("quantized", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    return [*products(), *convolutions()]


def products() -> Iterator[Entry]:
    """The GEMMs of SHAPES, and once more those behind which GELU stands."""
    for chain, shapes in ((_RELU, SHAPES), (_GELU, WIDENING)):
        for shape in shapes:
            half = GemmProblem(*shape, DType.F16, DType.F16, chain)
            sides = {dtype: coded(half, dtype) for dtype in (FP8, INT8)}
            name = gemm.name(half)
            yield Entry(name, 1, (half, *sides.values()), partial(_measure, name, half, sides))


def convolutions() -> Iterator[Entry]:
    """ResNet-50's, but for the first."""
    counted = Counter(conv.convolutions("resnet50"))
    for half, count in counted.items():
        if half.c > _FIRST_CHANNELS:
            sides, name = {INT8: coded(half, INT8)}, conv.name(half)
            measure = partial(_measure, name, half, sides, occurrences=count)
            yield Entry(name, conv.BATCH, (half, *sides.values()), measure)


def coded(
    half: GemmProblem | ConvProblem, dtype: DType
) -> QuantizedGemmProblem | QuantizedConvProblem:
    """The product of codes in the place of one in fp16."""
    steps = (ADD_CODES[dtype] if step == ADD else step for step in half.chain)
    chain = (DEQUANTIZE, *steps, QUANTIZE[dtype])
    if isinstance(half, GemmProblem):
        return QuantizedGemmProblem(half.m, half.n, half.k, dtype, dtype, chain)
    sizes = (half.n, half.h, half.w, half.c, half.k, half.r, half.s, half.p, half.q)
    window = (half.pads, half.strides, half.dilations, half.groups)
    return QuantizedConvProblem(*sizes, *window, dtype, dtype, chain)


def _measure(
    name: str,
    half: GemmProblem | ConvProblem,
    sides: Mapping[DType, QuantizedGemmProblem | QuantizedConvProblem],
    tuned: Tuned,
    occurrences: int = 0,
) -> Row:
    """The first of `sides` against fp16; the other one, and PyTorch's products, are values."""
    ours = {dtype: tuned.kernel(problem) for dtype, problem in sides.items()}
    fp16 = tuned.kernel(half)
    forms = libraries(half, sides) if peers.pytorch() else {}
    bare = {form: operation for found in forms.values() for form, operation in found.items()}
    samples = take_turns(
        {
            "fp16": fp16.measure,
            **{_WORDS[dtype]: kernel.measure for dtype, kernel in ours.items()},
            **bare,
        }
    )
    first, *others = ours
    mine, peer = samples[_WORDS[first]], samples["fp16"].median
    values: dict[str, Any] = {
        **tuned.notes(sides[first]),
        "epilogue": "+".join(half.chain),
        "tflops": round(half.flops / mine.median / 1e6, 1),
        "fp16_config": describe(fp16.config),
        "fp16_spread": round(samples["fp16"].spread, 4),
        "tried": medians({form: samples[form] for form in bare}),
        **({"occurrences": occurrences} if occurrences else {}),
    }
    for dtype in others:
        values |= _compared(_WORDS[dtype], samples[_WORDS[dtype]].median, ours[dtype], peer)
    for dtype, found in forms.items():
        best = fastest({form: samples[form] for form in found})
        us, word = samples[best].median, _WORDS[dtype]
        values[f"{word}_library"] = best
        values[f"{word}_library_us"] = round(us, 3)
        values[f"{word}_library_ratio"] = round(us / samples[word].median, 3)
    return Row(
        name,
        half.n if isinstance(half, ConvProblem) else 1,
        _WORDS[first],
        peer="our fp16 kernel",
        floor_us=round(floor_us(sides[first], tuned.arch), 3),
        values=values,
        **against(mine, peer),
        **ours[first].facts,
    )


def _compared(word: str, us: float, kernel: Ours, peer: float) -> dict[str, Any]:
    return {
        f"{word}_us": round(us, 3),
        f"{word}_ratio": round(peer / us, 3),
        f"{word}_error": kernel.facts["error"],
        f"{word}_config": kernel.facts["config"],
    }


def libraries(
    half: GemmProblem | ConvProblem,
    sides: Mapping[DType, QuantizedGemmProblem | QuantizedConvProblem],
) -> dict[DType, dict[str, Measure]]:
    """PyTorch's bare products of each type in all forms that run; it has no such convolutions."""
    if isinstance(half, ConvProblem):
        return {}
    found = {dtype: dict(_running(bare_products(half, dtype))) for dtype in sides}
    return {dtype: forms for dtype, forms in found.items() if forms}


def _running(forms: Mapping[str, peers.Operation]) -> Iterator[tuple[str, Measure]]:
    for name, operation in forms.items():
        try:
            yield name, operation.measure()
        except RuntimeError as error:
            say(f"  not measured: {name}: {error}")


def bare_products(problem: GemmProblem, dtype: DType) -> dict[str, peers.Operation]:
    """The forms of PyTorch's product of codes."""
    torch = peers.pytorch()
    m, n, k = problem.m, problem.n, problem.k
    sets = peers.operand_sets(m * k + n * k + m * n)
    x, weight = (_codes((sets, rows, k), dtype) for rows in (m, n))
    if dtype is INT8:
        return {"_int_mm": peers.Operation(lambda i: torch._int_mm(x[i], weight[i].t()), sets)}
    one = torch.ones((), dtype=torch.float32, device="cuda")

    def product(out: Any, fast: bool) -> Callable[[int], Any]:
        return lambda i: torch._scaled_mm(
            x[i], weight[i].t(), scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=fast
        )

    return {
        f"{FP8_PRODUCT} to {word}{FAST_SUMS if fast else ''}": peers.Operation(
            product(out, fast), sets
        )
        for word, out in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn))
        for fast in (True, False)
    }


def _codes(shape: tuple[int, ...], dtype: DType) -> Any:
    """Random codes, of the same distribution as the profiler's."""
    torch = peers.pytorch()
    values = peers.normal(shape, DType.F16, 48.0 if dtype is INT8 else 1.0)
    if dtype is INT8:
        return values.round_().clamp_(-128, 127).to(torch.int8)
    return values.to(torch.float8_e4m3fn)


if __name__ == "__main__":
    sys.exit(main())
