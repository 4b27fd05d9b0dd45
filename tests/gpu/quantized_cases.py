"""Kernel instances of products of codes, for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD_CODES, DEQUANTIZE, QUANTIZE, REQUANTIZE
from onnxbolt.families import named
from onnxbolt.families.blocks.codes import CodesConfig, PartialSums
from onnxbolt.problems import QuantizedConvProblem, QuantizedGemmProblem

FAMILIES = (named("quantized_gemm_sm90"), named("quantized_conv_sm90"))
DEPTHWISE = named("quantized_depthwise")
_I8, _U8, _E4M3, _F16, _BF16, _F32 = (
    DType.I8,
    DType.U8,
    DType.E4M3,
    DType.F16,
    DType.BF16,
    DType.F32,
)
_TYPES = ((_U8, _U8), (_I8, _I8), (_E4M3, _E4M3))
_OTHERS = ((_U8, _I8), (_U8, _F16), (_I8, _F32), (_E4M3, _F16), (_I8, _BF16), (_E4M3, _F32))
# steps between `Dequantize` and the codes of the result
_CHAINS = (
    (),
    ("Bias", "Relu"),
    ("Bias", "add", "Relu"),
    ("Bias", "pair", "add", "Relu"),
    ("Bias", "GeluErf"),
    ("Scale", "Clip"),
)
# with values that are added, or written beside codes
_BESIDE = (
    ("Bias", "AddF16", "Relu", "StoreF16"),
    ("Bias", "AddF32", "Relu", "StoreF32"),
    ("Bias", "AddBF16", "StoreBF16"),
    ("Bias", "Relu", "StoreF16"),
    ("Bias", "add", "Relu", "StoreF32"),
)
_ADDING = (
    ((_I8, _F16), ("Bias", "AddF16", "Relu")),
    ((_U8, _F32), ("Bias", "AddF32")),
    ((_E4M3, _BF16), ("Bias", "AddBF16", "Relu")),
)
# columns of nominal problems, which decide the widths of the tiles
_COLUMNS = (256, 64, 128, 48, 192, 80, 16, 512, 112)
_ROWS, _DEPTH = 20_000, 512
# sizes of depthwise filters, their strides and dilations
FILTERS = ((3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (3, 1, 2))
_IMAGES, _SIZE, _CHANNELS = 48, 28, 128


def instances(arch: int) -> Iterator[Instance]:
    """Each chain in each type, tiles and offsets in turn, and with results of other types; none
    where the families do not run."""
    turns = itertools.count()
    forms = [*itertools.product(_TYPES, _CHAINS), *zip(_OTHERS, itertools.cycle(_CHAINS[1:4]))]
    beside = [*itertools.product(_TYPES, _BESIDE), *_ADDING]
    both = itertools.product((False, True), forms), itertools.product((False, True), beside)
    for is_conv, ((dtype, out), steps) in itertools.chain(*both):
        turn = next(turns)
        problem = _problem(is_conv, turn, dtype, out, chain_of(dtype, out, steps))
        configs = _configs(problem, arch)
        if configs:
            yield _instance(problem, configs[5 * turn % len(configs)])
    yield from _in_turns(arch)
    for problem in (
        _problem(is_conv, 0, _I8, _I8, chain_of(_I8, _I8, ())) for is_conv in (False, True)
    ):
        # clusters whose blocks share rows of A, which the planner does not offer
        shared = [config for config in _configs(problem, arch) if config.cluster == (2, 1)][:1]
        yield from (_instance(problem, replace(config, cluster=(1, 2))) for config in shared)


def _in_turns(arch: int) -> Iterator[Instance]:
    """Two sets of partial sums: each chain, tiles in turn."""
    turns = itertools.count()
    for is_conv, steps in itertools.product((False, True), _CHAINS):
        turn = next(turns)
        problem = _problem(is_conv, turn, _E4M3, _E4M3, chain_of(_E4M3, _E4M3, steps))
        configs = [
            config for config in _configs(problem, arch) if config.partial_sums is PartialSums.TWO
        ]
        if configs:
            yield _instance(problem, configs[5 * turn % len(configs)])


def by_channel(arch: int) -> Iterator[Instance]:
    """Depthwise convolutions: each filter with a kernel of its own and another one, in each type
    and with each chain, tiles in turn."""
    turns = itertools.count()
    forms = [*itertools.product(_TYPES, _CHAINS), *zip(_OTHERS, itertools.cycle(_CHAINS[1:4]))]
    for (size, stride, dilation), ((dtype, out), steps) in itertools.product(FILTERS, forms):
        pad = dilation * (size - 1) // 2
        after = (_SIZE - 1) // stride + 1
        problem = QuantizedConvProblem(
            *(_IMAGES, _SIZE, _SIZE, _CHANNELS, _CHANNELS, size, size, after, after, (pad,) * 4),
            *((stride, stride), (dilation, dilation), _CHANNELS, dtype, out),
            *(chain_of(dtype, out, steps), dtype is not _E4M3, dtype is not _E4M3),
        )
        configs = [each.instance() for each in DEPTHWISE.candidates(problem, get(arch))]
        turn = next(turns)
        # every filter in one type, all types with one filter
        if size == 3 or dtype is _U8:
            yield Instance(configs[5 * turn % len(configs)], dtype, out, problem.chain)


def chain_of(dtype: DType, out: DType, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The chain's steps for these types; "add" reads codes, "pair" rounds to those of the
    result."""
    named_steps = {"add": ADD_CODES[dtype], "pair": REQUANTIZE[out if out.is_code else dtype]}
    ends = (QUANTIZE[out],) if out.is_code else ()
    return (DEQUANTIZE, *(named_steps.get(step, step) for step in steps), *ends)


def _problem(
    is_conv: bool, turn: int, dtype: DType, out: DType, chain: tuple[str, ...]
) -> QuantizedGemmProblem | QuantizedConvProblem:
    """A large one; offsets in turn, of integers alone."""
    columns, kind = _COLUMNS[turn % len(_COLUMNS)], turn % 3 if dtype is not _E4M3 else 0
    if not is_conv:
        return QuantizedGemmProblem(_ROWS, columns, _DEPTH, dtype, out, chain, kind > 0)
    pads = (0, 0, 0, 0) if kind == 1 else (1, 1, 1, 1)
    size = _SIZE - 2 if kind == 1 else _SIZE
    return QuantizedConvProblem(
        *(_IMAGES, _SIZE, _SIZE, _CHANNELS, columns, 3, 3, size, size, pads),
        *((1, 1), (1, 1), 1, dtype, out, chain, kind > 0, kind == 2),
    )


def _configs(problem: QuantizedGemmProblem | QuantizedConvProblem, arch: int) -> list[CodesConfig]:
    (family,) = (family for family in FAMILIES if isinstance(problem, family.problems))
    if not family.runs_on(get(arch)):
        return []
    return list(dict.fromkeys(each.instance() for each in family.candidates(problem, get(arch))))


def _instance(
    problem: QuantizedGemmProblem | QuantizedConvProblem, config: CodesConfig
) -> Instance:
    return Instance(config, problem.dtype, problem.out, problem.chain)
