"""The problems on which the GPU tests run a kernel instance, with the expected result in float64.

`problems` has some for every family, tails and gaps among them; a new family has a builder in
BUILDERS. Without pytest, so that run_family.py can use it under compute-sanitizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, STORE, gates, rotates
from onnxbolt.families import Family, named
from onnxbolt.families.attention import AttentionConfig
from onnxbolt.families.attention_sm90 import AttentionSm90Config
from onnxbolt.families.b2b_stored_sm90 import B2bStoredSm90Config
from onnxbolt.families.blocks.codes import CodesConfig, PartialSums
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.families.blocks.stem import StemConfig
from onnxbolt.families.conv_sm90 import ConvSm90Config
from onnxbolt.families.elementwise import ElementwiseConfig
from onnxbolt.families.halo_sm90 import HaloSm90Config
from onnxbolt.families.norm import NormConfig
from onnxbolt.ops.glu import TURN
from onnxbolt.problems import ConvProblem as PlannedConv
from onnxbolt.problems import GemmProblem as PlannedGemm
from onnxbolt.problems import Problem as PlannedProblem
from onnxbolt.problems.squeeze_excite import ACTIVATIONS
from onnxbolt.tune.tasks import instance_of
from tests.gpu import (
    attentions,
    conv3ds,
    conv_transposes,
    gemm_rows,
    group_norms,
    norms,
    quantized,
)
from tests.gpu import gemm_skinny_cases as skinny
from tests.gpu.cases import GEMMS, ConvShape, GemmShape, convolutions
from tests.gpu.chain_problems import chains_2x, sm90_chains, small_chains, wide_chains
from tests.gpu.conv_chains import (
    CONV_SHAPES,
    FIRST_SHAPES,
    HALO_SHAPES,
    conv_chain_problem,
    first_chain_problem,
    halo_chain_problem,
)
from tests.gpu.device import (
    Conv,
    Elementwise,
    Gemm,
    KernelError,
    Layout,
    Library,
    Pool,
    SqueezeExcite,
    Tensor,
)
from tests.gpu.operands import Operands, Problem, access, parameters, random_of
from tests.gpu.planned import FAMILIES as PLANNED
from tests.gpu.planned import planned
from tests.gpu.reference import LIMITS, convolve, drawn, epilogue, output_extent, rounded
from tests.gpu.resized import SHAPES as RESIZES
from tests.gpu.resized import resize_problem
from tests.gpu.sampled import SHAPES as SAMPLES
from tests.gpu.sampled import sample_problem
from tests.gpu.shuffled import SHAPES as SHUFFLES
from tests.gpu.shuffled import shuffle_problem
from tests.gpu.stored_chains import SHAPES as STORED_SHAPES
from tests.gpu.stored_chains import stored_problem

Builder = Callable[[Library, Instance], list[Any]]


class GemmProblem:
    """One GEMM on the device: `arguments` for the kernel, `output`, and `expected` in float64."""

    def __init__(self, library: Library, instance: Instance, shape: GemmShape) -> None:
        rng = random_of(instance, shape)
        unit, unit_n = access(instance.config)[0], _unit_n(instance)
        m, n, k = shape.m, shape.n * unit_n, shape.k * unit
        a = rounded(rng.normal(0, 1, (m, k)), instance.dtype)
        gated = gates(instance.chain) > 0
        b = rounded(rng.normal(0, k**-0.5, ((1 + gated) * n, k)), instance.dtype)
        self.operands = Operands(library, instance, (m, n), shape.gap * unit_n, rng)
        self.a, self.b = Tensor(library, a, shape.gap * unit), Tensor(library, b, shape.gap * unit)
        self.output = Tensor(
            library, np.zeros((m, n), instance.out.numpy), shape.gap * unit_n, empty=True
        )
        self.arguments = Gemm.of(self.a, self.b, self.output, self.operands.arguments)
        product = a.astype(np.float64) @ b.astype(np.float64).T
        turns = product.reshape(m, -1, 2, TURN) if gated else product[:, :, None]
        halves = [turns[:, :, i].reshape(m, n) for i in range(turns.shape[2])]
        operands = self.operands
        self.expected = epilogue(
            halves[0],
            instance.chain,
            operands.vectors,
            operands.tensors,
            half=halves[1] if gated else None,
            rotation=operands.rotation,
        )


class ConvProblem:
    """One convolution on the device, as GemmProblem."""

    def __init__(self, library: Library, instance: Instance, shape: ConvShape) -> None:
        rng = random_of(instance, shape)
        unit, unit_k = access(instance.config)[0], _unit_n(instance)
        c, k, (p, q) = shape.c * unit, shape.k * unit_k, output_extent(shape)
        x = rounded(rng.normal(0, 1, (shape.n, shape.h, shape.w, c)), instance.dtype)
        weight = rounded(
            rng.normal(0, (shape.r * shape.s * c) ** -0.5, (k, shape.r, shape.s, c)), instance.dtype
        )
        self.operands = Operands(library, instance, (shape.n, p, q, k), shape.gap * unit_k, rng)
        self.x, self.weight = Tensor(library, x, shape.gap * unit), Tensor(library, weight)
        self.expected = epilogue(
            convolve(x, weight, shape), instance.chain, self.operands.vectors, self.operands.tensors
        )
        self.output = Tensor(
            library,
            np.zeros(self.expected.shape, instance.out.numpy),
            shape.gap * unit_k,
            empty=True,
        )
        top, left, bottom, right = shape.pads
        self.arguments = Conv(
            shape.n,
            shape.h,
            shape.w,
            c,
            k,
            shape.r,
            shape.s,
            p,
            q,
            top,
            left,
            bottom,
            right,
            *shape.strides,
            *shape.dilations,
            1,
            self.x.pointer,
            self.weight.pointer,
            self.output.pointer,
            self.x.pitch,
            self.output.pitch,
            self.operands.arguments,
        )


def elementwise_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int]
) -> Problem:
    """A chain by itself; `shape` is rows, channels, and elements between rows."""
    rows, channels, gap = shape
    rng = random_of(instance, shape)
    x = drawn(rng, (rows, channels), instance.dtype)
    operands = Operands(library, instance, x.shape, gap, rng)
    source, output = (
        Tensor(library, x, gap),
        Tensor(library, np.zeros_like(x, instance.out.numpy), gap, empty=True),
    )
    arguments = Elementwise(
        rows,
        channels,
        source.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
        operands.arguments,
    )
    expected = epilogue(x.astype(np.float64), instance.chain, operands.vectors, operands.tensors)
    return Problem(arguments, output, expected, (source, operands))


def _pool_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int]
) -> Problem:
    """The mean of each whole image, the largest code where results are codes; `shape` is n, h, w,
    c."""
    n, h, w, c = shape
    x = drawn(random_of(instance, shape), shape, instance.dtype)
    kind = int(not instance.out.is_code)
    source, output = (
        Tensor(library, x),
        Tensor(library, np.zeros((n, 1, 1, c), instance.out.numpy), empty=True),
    )
    window = (h, w, 0, 0, 0, 0, 1, 1, 1, 1, 0)
    arguments = Pool(
        kind, n, h, w, c, 1, 1, *window, source.pointer, output.pointer, source.pitch, output.pitch
    )
    reduce = np.mean if kind else np.max
    expected = reduce(x.astype(np.float64), axis=(1, 2), keepdims=True)
    return Problem(arguments, output, expected, (source,))


def _layout_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int]
) -> Problem:
    """To channels last; `shape` is images, channels, channels as stored, pixels."""
    n, channels, stored, pixels = shape
    x = drawn(random_of(instance, shape), (n, channels, pixels), instance.dtype)
    y = np.pad(x.transpose(0, 2, 1), ((0, 0), (0, 0), (0, stored - channels))).astype(
        instance.out.numpy
    )
    source, output = Tensor(library, x), Tensor(library, np.empty_like(y), empty=True)
    return Problem(
        Layout(1, *shape, source.pointer, output.pointer), output, y.astype(np.float64), (source,)
    )


@dataclass(frozen=True)
class FirstShape:
    """A first convolution, but for its filter and strides; k in blocks of the kernel's output
    channels. `wide`: x is fp32."""

    n: int
    h: int
    w: int
    blocks: int = 1
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    gap: int = 0
    wide: bool = True


FIRST = (
    FirstShape(2, 37, 45, pads=(1, 2, 1, 2)),
    FirstShape(1, 11, 11, wide=False),
    FirstShape(3, 23, 70, pads=(3, 1, 0, 1), gap=8, wide=False),
    FirstShape(1, 64, 64, pads=(3, 3, 3, 3)),
    FirstShape(5, 33, 48, blocks=2, pads=(0, 2, 1, 0), gap=16),
    FirstShape(40, 16, 20, wide=False),
)


def first_problem(library: Library, instance: Instance, shape: FirstShape) -> Problem:
    """A model's first convolution: x is NCHW."""
    config = instance.config
    assert isinstance(config, StemConfig)
    (r, s, c), (stride_h, stride_w) = config.filter, config.strides
    rng, k = random_of(instance, shape), shape.blocks * config.columns
    conv = ConvShape(shape.n, shape.h, shape.w, c, k, r, s, shape.pads, (stride_h, stride_w))
    x = rng.normal(0, 1, (shape.n, c, shape.h, shape.w)).astype(
        np.float32 if shape.wide else instance.dtype.numpy
    )
    weight = rounded(rng.normal(0, (r * s * c) ** -0.5, (k, r, s, c)), instance.dtype)
    p, q = output_extent(conv)
    operands = Operands(library, instance, (shape.n, p, q, k), shape.gap, rng)
    source, filters = Tensor(library, x), Tensor(library, weight)
    output = Tensor(
        library, np.zeros((shape.n, p, q, k), instance.out.numpy), shape.gap, empty=True
    )
    arguments = Conv(
        shape.n,
        shape.h,
        shape.w,
        c,
        k,
        r,
        s,
        p,
        q,
        *shape.pads,
        stride_h,
        stride_w,
        1,
        1,
        1,
        source.pointer,
        filters.pointer,
        output.pointer,
        c,
        output.pitch,
        operands.arguments,
        (DType.F32 if shape.wide else instance.dtype).onnx,
    )
    seen = rounded(x.transpose(0, 2, 3, 1), instance.dtype)
    expected = epilogue(
        convolve(seen, weight, conv), instance.chain, operands.vectors, operands.tensors
    )
    return Problem(arguments, output, expected, (source, filters, operands))


def squeeze_excite_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int, int]
) -> Problem:
    """`shape` is images, pixels, channels, squeezed channels (padded to 16 bytes), and elements
    between pixels."""
    n, pixels, channels, squeezed, gap = shape
    squeezed = -(-squeezed // instance.dtype.alignment) * instance.dtype.alignment
    rng, element = random_of(instance, shape), instance.dtype.numpy
    x = (rng.normal(0, 1, (n, pixels, channels)) + rng.normal(0, 1, (n, 1, channels))).astype(
        element
    )
    weights = [
        rng.normal(0, k**-0.5, (m, k)).astype(element)
        for m, k in ((squeezed, channels), (channels, squeezed))
    ]
    biases = [rng.normal(0, 1, m).astype(np.float32) for m in (squeezed, channels)]
    source, output = Tensor(library, x, gap), Tensor(library, np.zeros_like(x), gap, empty=True)
    squeeze, excite, squeeze_bias, excite_bias = (
        Tensor(library, values) for values in (*weights, *biases)
    )
    arguments = SqueezeExcite(
        n,
        pixels,
        channels,
        squeezed,
        source.pointer,
        squeeze.pointer,
        excite.pointer,
        squeeze_bias.pointer,
        excite_bias.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
    )
    params = parameters(instance)
    arguments.step_params[: len(params)] = params
    behind = instance.chain[ACTIVATIONS:]
    operands = Operands(library, replace(instance, chain=behind), x.shape, gap, rng)
    arguments.epilogue = operands.arguments
    value = x.astype(np.float64).mean(1)
    for step, weight, bias in zip(instance.chain, weights, biases, strict=False):
        value = epilogue(value @ weight.astype(np.float64).T + bias, (step,), (), ())
    return Problem(
        arguments,
        output,
        epilogue(x.astype(np.float64) * value[:, None], behind, (), operands.tensors),
        (source, squeeze, excite, squeeze_bias, excite_bias, operands),
    )


def _planned_gemm(library: Library, instance: Instance, problem: PlannedGemm) -> Problem:
    """Without an answer, as planned_conv: test_planned.py compares with the profiler's
    reference."""
    rng, element = np.random.default_rng(0), instance.dtype.numpy
    a, b = (
        Tensor(library, rng.normal(0, 1, (rows, problem.k)).astype(element))
        for rows in (problem.m, problem.n)
    )
    y = Tensor(library, np.zeros((problem.m, problem.n), instance.out.numpy), empty=True)
    operands = Operands(library, instance, y.shape, 0, rng)
    arguments = Gemm.of(a, b, y, operands.arguments)
    return Problem(arguments, y, None, (a, b, operands))


def planned_conv(
    library: Library, instance: Instance, problem: PlannedConv, apart: bool = False
) -> Problem:
    """Without an answer, too. `apart`: pixels of x, and of an output with its channels last,
    have gaps as long as themselves between them."""
    n, h, w, c, k, r, s, p, q = (getattr(problem, name) for name in "nhwckrspq")
    rng, element = np.random.default_rng(0), instance.dtype.numpy
    image = rng.normal(0, 1, (n, c, h, w) if problem.nchw else (n, h, w, c)).astype(
        np.float32 if problem.nchw else element
    )
    x = Tensor(library, image, c if apart else 0)
    weight = Tensor(library, rng.normal(0, 1, (k, r, s, c // problem.groups)).astype(element))
    shape, gap = (
        ((n, k - problem.padding, p, q), 0) if problem.y_nchw else ((n, p, q, k), k if apart else 0)
    )
    if MEAN in problem.chain:
        shape = (n, 1, 1, k)
    y = Tensor(library, np.zeros(shape, instance.out.numpy), gap, empty=True)
    stored = (
        Tensor(library, np.zeros((n, p, q, k), element), empty=True) if problem.both_forms else None
    )
    operands = Operands(library, instance, (n, p, q, k), 0, rng)
    arguments = Conv(
        n,
        h,
        w,
        c,
        k,
        r,
        s,
        p,
        q,
        *problem.pads,
        *problem.strides,
        *problem.dilations,
        problem.groups,
        x.pointer,
        weight.pointer,
        y.pointer,
        c if problem.nchw else x.pitch,
        y.pitch,
        operands.arguments,
        DType.F32.onnx if problem.nchw else 0,
        int(problem.y_nchw),
        stored.pointer if stored else None,
        problem.padding,
    )
    return Problem(arguments, y, None, (x, weight, operands, stored))


def _planned(library: Library, instance: Instance) -> list[Any]:
    made = []
    for problem in _planned_for(instance):
        if isinstance(problem, PlannedGemm):
            made.append(_planned_gemm(library, instance, problem))
        else:
            assert isinstance(problem, PlannedConv)
            made.append(planned_conv(library, instance, problem))
    return made


def deep(library: Library, instance: Instance, blocks: int) -> Any:
    """A problem of gemm_sm90 or conv_sm90 with so many k-blocks, the last of which is cut off."""
    config = instance.config
    assert isinstance(config, Sm90Config)
    units = blocks * config.k // config.access_in - 1
    if config.family is named("gemm_sm90"):
        return GemmProblem(library, instance, GemmShape(130, 3, units, gap=1))
    if config.access_out > 1 and STORE not in instance.chain:
        return ConvProblem(library, instance, ConvShape(2, 5, 7, units, 3, 1, 1, gap=1))
    (conv, *_) = _planned_for(instance)  # a problem of y in NCHW
    assert isinstance(conv, PlannedConv)
    return planned_conv(library, instance, replace(conv, c=units * config.access_in))


def _planned_for(instance: Instance) -> list[PlannedProblem]:
    return [
        problem
        for problem, row in planned(instance.config.arch)
        if instance_of(problem, row) == instance
    ]


def _gemms(library: Library, instance: Instance) -> list[Any]:
    return [GemmProblem(library, instance, shape) for shape in GEMMS]


def _convolutions(library: Library, instance: Instance) -> list[Any]:
    return [ConvProblem(library, instance, shape) for shape in convolutions(instance)]


def _each(make: Callable[..., Problem], *shapes: tuple[int, ...]) -> Builder:
    return lambda library, instance: [make(library, instance, shape) for shape in shapes]


BUILDERS: dict[Family[Any], Builder] = {
    named("gemm_2x"): _gemms,
    named("gemm_3x"): _gemms,
    named("gemm_skinny"): lambda library, instance: [
        GemmProblem(library, instance, shape)
        for shape in (*GEMMS, *(GemmShape(*shape) for shape in skinny.SHAPES))
    ],
    **dict.fromkeys(PLANNED, _planned),
    named("conv_2x"): lambda library, instance: [
        *_convolutions(library, instance),
        *_planned(library, instance),
    ],
    named("gemm_sm90"): lambda library, instance: [
        *_gemms(library, instance),
        *_planned(library, instance),
    ],
    named("conv_sm90"): lambda library, instance: [
        *_convolutions(library, instance),
        *_planned(library, instance),
    ],
    named("stem_sm90"): lambda library, instance: [
        first_problem(library, instance, shape) for shape in FIRST
    ],
    named("b2b_gemm_sm90"): sm90_chains,
    named("gemm_rows_sm90"): lambda library, instance: [
        gemm_rows.problem(library, instance, shape) for shape in gemm_rows.SHAPES
    ],
    named("b2b_gemm_small"): small_chains,
    named("b2b_gemm_wide_sm90"): wide_chains,
    named("b2b_gemm_2x"): chains_2x,
    named("b2b_stored_sm90"): lambda library, instance: [
        stored_problem(library, instance, shape) for shape in STORED_SHAPES
    ],
    named("b2b_stem_sm90"): lambda library, instance: [
        first_chain_problem(library, instance, shape) for shape in FIRST_SHAPES
    ],
    named("b2b_conv_sm90"): lambda library, instance: [
        conv_chain_problem(library, instance, shape) for shape in CONV_SHAPES
    ],
    named("b2b_conv_2x"): lambda library, instance: [
        conv_chain_problem(library, instance, shape) for shape in CONV_SHAPES
    ],
    named("b2b_halo_sm90"): lambda library, instance: [
        halo_chain_problem(library, instance, shape) for shape in HALO_SHAPES
    ],
    named("squeeze_excite"): _each(
        squeeze_excite_problem,
        (1, 1, 8, 8, 0),
        (3, 49, 160, 40, 0),
        (2, 25, 13, 5, 3),
        (33, 9, 72, 24, 8),
    ),
    named("pool"): _each(_pool_problem, (2, 7, 7, 40), (1, 33, 20, 7), (3, 2, 2, 64)),
    named("resize"): lambda library, instance: [
        resize_problem(library, instance, shape)
        for shape in RESIZES
        if shape.sampling.mode == "nearest" or not instance.dtype.is_code
    ],
    named("pixel_shuffle"): lambda library, instance: [
        shuffle_problem(library, instance, shape) for shape in SHUFFLES
    ],
    named("grid_sample"): lambda library, instance: [
        sample_problem(library, instance, shape) for shape in SAMPLES
    ],
    named("layout"): _each(_layout_problem, (2, 3, 4, 500), (1, 61, 64, 49), (2, 130, 130, 63)),
    named("norm"): norms.problems,
    named("attention"): attentions.problems,
    named("attention_sm90"): attentions.problems,
    named("conv3d_sm90"): conv3ds.problems,
    named("conv_transpose_sm90"): conv_transposes.problems,
    named("group_norm"): group_norms.problems,
    named("quantized_gemm_sm90"): quantized.problems,
    named("quantized_conv_sm90"): quantized.problems,
    named("quantized_depthwise"): quantized.by_channel,
    named("elementwise"): _each(elementwise_problem, (1, 1, 0), (777, 10, 2), (70001, 64, 0)),
}


def problems(library: Library, instance: Instance) -> list[Any]:
    """Those of the family's that this instance implements. AssertionError where there is none."""
    kernel = library.kernel(instance)
    found = [
        problem
        for problem in BUILDERS[instance.config.family](library, instance)
        if _implements(kernel, problem)
    ]
    assert found, (
        f"{instance_name(instance)} implements none of the shapes that its family is tested with"
    )
    return found


def examples(instances: Sequence[Instance]) -> dict[str, Instance]:
    """One instance of each form of each family, that with the longest chain."""
    found: dict[str, Instance] = {}
    for instance in instances:
        form = _form(instance)
        if form not in found or len(instance.chain) > len(found[form].chain):
            found[form] = instance
    return dict(sorted(found.items()))


def _form(instance: Instance) -> str:
    """The family's name, and what its result is where that takes other code than the family's
    usual one."""
    config, chain = instance.config, instance.chain
    is_forms = {
        "MEAN": MEAN in chain,
        "NCHW_OUTPUT": (
            isinstance(config, ConvSm90Config | HaloSm90Config) and config.access_out == 1
        ),
        "BOTH_FORMS": isinstance(config, ConvSm90Config) and chain[-1:] == (STORE,),
        "GATED": gates(chain) > 0,
        "ROTATED": rotates(chain),
        "SWAPPED": isinstance(config, Sm90Config) and config.swapped,
        "MASKED": (isinstance(config, AttentionConfig | AttentionSm90Config) and config.mask != 0),
        "BANDED": isinstance(config, AttentionConfig | AttentionSm90Config) and config.banded,
        "WINDOWS": isinstance(config, AttentionConfig) and config.windows,
        "RESIDENT": isinstance(config, AttentionConfig | NormConfig) and config.resident,
        "TOKENS": isinstance(config, NormConfig) and config.tokens and not config.tables,
        "EMBEDDINGS": isinstance(config, NormConfig) and config.tables > 0,
        "DIVIDED": isinstance(config, AttentionConfig) and config.splits > 1,
        "CODES": instance.dtype.is_code and bool(config.family.codes),
        "TO_CODES": isinstance(config, ElementwiseConfig | NormConfig | AttentionSm90Config)
        and not instance.dtype.is_code
        and instance.out.is_code,
        "PARTIAL_SUMS": isinstance(config, CodesConfig) and config.partial_sums == PartialSums.ONE,
        "IN_TURNS": isinstance(config, CodesConfig) and config.partial_sums == PartialSums.TWO,
        "OFFSETS": isinstance(config, CodesConfig) and config.offsets > 0,
        "VALUES": isinstance(config, CodesConfig) and not instance.out.is_code,
        "NOT_STORED": isinstance(config, B2bStoredSm90Config) and STORE not in chain,
    }
    return "-".join([config.family.name, *(name for name, is_form in is_forms.items() if is_form)])


def limit(instance: Instance) -> float:
    """The relative error that the instance's answers may have."""
    return max(LIMITS[instance.dtype], LIMITS[instance.out])


def _implements(kernel: Any, problem: Any) -> bool:
    try:
        kernel.check(problem.arguments)
    except KernelError:
        return False
    return True


_TMA = (named("gemm_3x"), named("gemm_sm90"), named("conv_sm90"))


def _unit_n(instance: Instance) -> int:
    """The multiple that n must be of: TMA writes rows of 16 bytes, whatever the input's type."""
    least = 16 // instance.out.bytes if instance.config.family in _TMA else 1
    turn = TURN * (gates(instance.chain) or rotates(instance.chain))
    return max(access(instance.config)[1], least, turn)
