"""Measuring on a GPU: right kernels have times, and planted ones, which crash, hang and answer
wrongly, harm none but themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD_CODES, EPILOGUES, PRODUCT, QUANTIZE, STORE
from onnxbolt.families import FAMILIES, KernelConfig
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.plan.cost import predict, ranked
from onnxbolt.problems import (
    AttentionProblem,
    BatchedGemmProblem,
    ConvProblem,
    GemmProblem,
    GluProblem,
    NormProblem,
    Problem,
    QuantizedConvProblem,
    QuantizedGemmProblem,
    RotaryProblem,
)
from onnxbolt.problems.attention import BAND_LEAST
from onnxbolt.tolerances import KERNEL
from onnxbolt.tune.library import build, host_units, link_library, profiling_toolchain
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.tasks import instance_of
from tests.gpu.cases import ARCH, config_3x, mma
from tests.support import planned

pytestmark = pytest.mark.gpu

CHAIN = ("Bias", "Relu")
GEMM = GemmProblem(1024, 768, 768, DType.F16, DType.F16, CHAIN)
CONV = ConvProblem(
    8, 28, 28, 64, 128, 3, 3, 14, 14, (1, 1, 1, 1), (2, 2), (1, 1), 1, DType.F16, DType.F16, CHAIN
)
TMA = [config_3x(90, DType.F16, turn) for turn in (0, 3)] if ARCH == 90 else []
NORMS = [
    NormProblem(1280, 768, True, DType.F16, DType.F16, ("Scale", "Bias")),
    NormProblem(1001, 96, True, DType.F16, DType.F16, ("Add", STORE, "Scale", "Bias")),
    NormProblem(517, 1024, False, DType.F16, DType.F16, ("Add", "Scale")),
    NormProblem(67, 10, True, DType.F16, DType.F16, ()),
]
GLUS = [
    GluProblem(1280, 1152, 768, DType.F16, DType.F16, ("Silu", "Gate")),
    GluProblem(517, 200, 256, DType.F16, DType.F16, ("Bias", "GeluErf", "GateBias", "Add")),
] * (ARCH == 90)
ROTARIES = [
    RotaryProblem(1280, 2304, 768, DType.F16, DType.F16, ("Bias", "Rotate"), 1536, 320, 64),
    RotaryProblem(516, 200, 256, DType.F16, DType.F16, ("Rotate",), 144, 43, 24),
]
BATCHED = [
    BatchedGemmProblem(8, 100, 4096, 256, DType.F16, DType.F16, (), 4096, 256),
    BatchedGemmProblem(3, 17, 44, 72, DType.F16, DType.F16, ("Scale", "Bias", "Add"), 44, 72),
]
VIT = AttentionProblem(8, 12, 12, 197, 197, 64, 64, DType.F16, DType.F16)
BIAS: dict[str, Any] = {
    "mask": ("added", "f16"),
    "mask_shape": (12, 197, 300),
    "orders": ("bhsd",) * 3,
}
ATTENTIONS = [
    VIT,
    dataclasses.replace(VIT, batch=3, mask=("kept",), mask_shape=(3, 1, 1, 197)),
    dataclasses.replace(VIT, batch=2, keys=300, **BIAS),
    dataclasses.replace(VIT, batch=1, heads=8, key_heads=2, band=(BAND_LEAST, 0, 0)),
    dataclasses.replace(VIT, mask=("dropped",), mask_shape=(197, 197), size=80, value_size=80),
]
CODES: list[QuantizedGemmProblem | QuantizedConvProblem] = [
    problem
    for dtype in (DType.I8, DType.U8, DType.E4M3)
    for problem in (
        QuantizedGemmProblem(
            1280,
            768,
            3072,
            dtype,
            dtype,
            ("Dequantize", "Bias", "GeluErf", QUANTIZE[dtype]),
            dtype is DType.U8,
        ),
        QuantizedGemmProblem(517, 200, 256, dtype, DType.F16, ("Dequantize", "Bias", "Silu")),
        QuantizedConvProblem(
            *(8, 28, 28, 64, 128, 3, 3, 14, 14, (1, 1, 1, 1), (2, 2), (1, 1), 1, dtype, dtype),
            ("Dequantize", "Bias", ADD_CODES[dtype], "Relu", QUANTIZE[dtype]),
            *(dtype is DType.U8, dtype is DType.U8),
        ),
        QuantizedConvProblem(
            *(8, 28, 28, 64, 128, 3, 3, 28, 28, (1, 1, 1, 1), (1, 1), (1, 1), 1, dtype, dtype),
            ("Dequantize", "Bias", "AddF16", "Relu", "StoreF16", QUANTIZE[dtype]),
            *(dtype is DType.U8, dtype is DType.U8),
        ),
        QuantizedGemmProblem(
            *(1280, 256, 512, dtype, dtype),
            ("Dequantize", "Bias", "AddF32", "StoreF32", QUANTIZE[dtype]),
        ),
        QuantizedGemmProblem(517, 208, 256, dtype, DType.F16, ("Dequantize", "Bias", "AddF16")),
        QuantizedConvProblem(
            *(8, 28, 28, 64, 64, 3, 3, 28, 28, (1, 1, 1, 1), (1, 1), (1, 1), 64, dtype, dtype),
            ("Dequantize", "Bias", "Relu", QUANTIZE[dtype]),
            *(dtype is DType.U8, dtype is DType.U8),
        ),
    )
] * (ARCH == 90)
PEAK = 2.3e9  # FLOP in a microsecond: more than any GPU of these architectures does


# tile shapes of threadblocks and of their warps
TILES = (
    ((128, 128, 32), (64, 64, 32)),
    ((64, 64, 64), (32, 32, 64)),
    ((64, 128, 64), (32, 64, 64)),
)
FIELDS: dict[str, Any] = {
    "arch": ARCH,
    "instruction": mma(DType.F16, ARCH),
    "stages": 3 if ARCH >= 80 else 2,
    "swizzle": 1,
}
GEMMS = [Gemm2xConfig(tile=tile, warp=warp, **FIELDS) for tile, warp in TILES]
CONVS = [Conv2xConfig(tile=tile, warp=warp, walk=Walk.OPTIMIZED, **FIELDS) for tile, warp in TILES]


@pytest.fixture(scope="module")
def profiler() -> Iterable[Profiler]:
    with Profiler(ARCH) as profiler:
        yield profiler


@pytest.fixture(scope="module")
def libraries() -> dict[Instance, Path]:
    """Compiled together, for all tests of this file."""
    ours = [Instance(c.instance(), DType.F16, DType.F16, CHAIN) for c in (*GEMMS, *CONVS)]
    ours += [Instance(c, DType.F16, DType.F16, CHAIN) for c in TMA]
    chains = [Instance(GEMMS[1].instance(), dtype, dtype, chain) for dtype, chain in _chains()]
    return {
        instance: library
        for instance, library in build([*ours, *chains])
        if isinstance(library, Path)
    }


def _chains() -> list[tuple[DType, tuple[str, ...]]]:
    """Every step of one value, which matching finds by itself, behind a tensor operand and a bias,
    in fp16."""
    steps = [step for step in EPILOGUES.values() if step.patterns or step.forms]
    return [(DType.F16, ("Add", "Bias", step.name)) for step in steps if not step.cast]


@pytest.fixture(scope="module")
def planted() -> dict[str, tuple[KernelConfig, Path]]:
    """The kernels of planted.cu by name, in one library."""
    chains: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("Crash", "Hang", "Zero", "Pixel"), CHAIN),
        **dict.fromkeys(("Rows", "Row"), NORMS[0].chain),
    }
    configs = {
        name: Gemm2xConfig(
            arch=ARCH,
            tile=(1, 1, i),
            warp=(0, 0, 0),
            instruction=(0, 0, 0),
            stages=0,
            swizzle=1,
        )
        for i, name in enumerate(chains)
    }
    lines = [
        f'PLANT({name}, "{",".join(chains[name])}", {", ".join(map(str, c.row()))})'
        for name, c in configs.items()
    ]
    text = "\n".join([Path(__file__).with_name("planted.cu").read_text(), *lines, ""])
    toolchain = profiling_toolchain()
    library = link_library(
        compile_units([Unit("planted.cu", text, ARCH), *host_units()], toolchain), toolchain
    )
    return {name: (c, library) for name, c in configs.items()}


def candidates(
    libraries: dict[Instance, Path], configs: Sequence[KernelConfig]
) -> list[tuple[KernelConfig, Path]]:
    return [(c, libraries[Instance(c.instance(), DType.F16, DType.F16, CHAIN)]) for c in configs]


def check(measurement: Measurement, flops: int) -> None:
    assert measurement.status is Status.OK, measurement
    assert 0 < measurement.error <= KERNEL[DType.F16]
    assert flops / PEAK < measurement.us < 1000
    assert measurement.mad < 0.1 * measurement.us
    assert 300 < measurement.clock_mhz < 4000


def test_machine(profiler: Profiler) -> None:
    machine = profiler.machine
    assert "NVIDIA" in machine.gpu
    assert machine.power_limit > 0


def test_gemm(profiler: Profiler, libraries: dict[Instance, Path]) -> None:
    for measurement in profiler.measure(GEMM, candidates(libraries, GEMMS)):
        check(measurement, GEMM.flops)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize(
    "problem",
    [*NORMS, *GLUS, *ROTARIES],
    ids=lambda problem: f"{problem.shape} {'+'.join(problem.chain)}",
)
def test_norm_gated_unit_and_rotary(
    profiler: Profiler, problem: NormProblem | GluProblem | RotaryProblem, dtype: DType
) -> None:
    check_best(profiler, dataclasses.replace(problem, dtype=dtype, out=dtype), dtype)


def check_best(profiler: Profiler, problem: Problem, dtype: DType) -> None:
    """The three kernels that are predicted to be the fastest."""
    configs = {instance_of(problem, c): c for _, c in ranked(problem, get(ARCH))[:3]}
    built = [
        (configs[instance], library)
        for instance, library in build(configs)
        if isinstance(library, Path)
    ]
    measured = profiler.measure(problem, built, sweep=False)
    assert len(measured) == 3
    for measurement in measured:
        assert measurement.status is Status.OK, measurement
        assert measurement.error <= KERNEL[dtype]
        assert 0.5 < measurement.us < 100


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize("problem", BATCHED, ids=lambda problem: problem.shape)
def test_batched_gemm(profiler: Profiler, problem: BatchedGemmProblem, dtype: DType) -> None:
    check_best(profiler, dataclasses.replace(problem, dtype=dtype, out=dtype), dtype)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize("problem", ATTENTIONS, ids=lambda problem: problem.shape)
def test_attention(profiler: Profiler, problem: AttentionProblem, dtype: DType) -> None:
    mask = ("added", dtype.value) if problem.mask[:1] == ("added",) else problem.mask
    problem = dataclasses.replace(problem, dtype=dtype, out=dtype, mask=mask)
    best = dict[str, KernelConfig]()  # by family
    for _, config in ranked(problem, get(ARCH)):
        best.setdefault(config.family.name, config)
    configs = {instance_of(problem, config): config for config in best.values()}
    built = [
        (configs[instance], library)
        for instance, library in build(configs)
        if isinstance(library, Path)
    ]
    measured = profiler.measure(problem, built)
    assert len(measured) == len(best) > 0
    for measurement in measured:
        assert measurement.status is Status.OK, measurement
        assert measurement.error <= KERNEL[dtype]
        assert 0.5 < measurement.us < 1000


@pytest.mark.parametrize("problem", CODES, ids=lambda problem: problem.description)
def test_products_of_codes(
    profiler: Profiler, problem: QuantizedGemmProblem | QuantizedConvProblem
) -> None:
    """Three kernels of each, with the splits and swizzles that the tuner tries; kernels may refuse
    to split k, and so many parts."""
    solving = (each for each in FAMILIES.values() if isinstance(problem, each.problems))
    (family,) = (each for each in solving if each.candidates(problem, get(ARCH)))
    with planned(family):
        configs = {instance_of(problem, c): c for _, c in ranked(problem, get(ARCH))[:3]}
    built = [
        (configs[instance], library)
        for instance, library in build(configs)
        if isinstance(library, Path)
    ]
    measured = profiler.measure(problem, built)
    assert len(measured) >= 3
    for measurement in measured:
        splits = getattr(measurement.config, "split_k", 1) > 1
        if not splits or measurement.status is not Status.REFUSED:
            check_codes(measurement, problem)


def check_codes(
    measurement: Measurement, problem: QuantizedGemmProblem | QuantizedConvProblem
) -> None:
    assert measurement.status is Status.OK, measurement
    assert measurement.error <= max(KERNEL[problem.dtype], KERNEL[problem.out])
    assert problem.flops / PEAK < measurement.us < 1000


def test_one_wrong_value_of_a_norm_is_found(
    profiler: Profiler, planted: dict[str, tuple[KernelConfig, Path]]
) -> None:
    measured = profiler.measure(NORMS[0], [planted["Rows"], planted["Row"]])
    assert [m.status for m in measured] == [Status.OK, Status.WRONG]


def test_conv(profiler: Profiler, libraries: dict[Instance, Path]) -> None:
    for measurement in profiler.measure(CONV, candidates(libraries, CONVS)):
        check(measurement, CONV.flops)


@pytest.mark.skipif(ARCH != 90, reason="3.x kernels are for sm_90a")
def test_3x_kernels_are_measured_with_every_swizzle(
    profiler: Profiler, libraries: dict[Instance, Path]
) -> None:
    # a problem of its own: swizzles are tried for kernels near the best one known, and 2.x kernels
    # may be that for GEMM
    problem = dataclasses.replace(GEMM, m=4096)
    measured = profiler.measure(problem, candidates(libraries, TMA))
    tried = [m.config for m in measured]
    assert {c.swizzle for c in tried if isinstance(c, Gemm3xConfig)} == {1, 2, 4, 8}
    for measurement in measured:
        check(measurement, problem.flops)


def test_times_repeat(profiler: Profiler, libraries: dict[Instance, Path]) -> None:
    first, second = (profiler.measure(GEMM, candidates(libraries, GEMMS)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert abs(one.us - other.us) < 0.1 * one.us


@pytest.mark.parametrize(("dtype", "chain"), _chains(), ids=lambda value: str(value))
def test_the_reference_knows_every_step(
    profiler: Profiler, libraries: dict[Instance, Path], dtype: DType, chain: tuple[str, ...]
) -> None:
    problem = GemmProblem(256, 256, 512, dtype, dtype, chain)
    (measurement,) = profiler.measure(
        problem,
        [(GEMMS[1], libraries[Instance(GEMMS[1].instance(), dtype, dtype, chain)])],
        samples=3,
    )
    assert measurement.status is Status.OK, measurement


LAYERS = (("Bias", "LeakyRelu"), ("Bias", "Elu"), ("Bias",))
STORED = ("Bias", "Add", "LeakyRelu", STORE, PRODUCT, "Bias", "Elu")
INNER = tuple(step for step in STORED if step != STORE)
SEVERAL = (
    GemmProblem(
        5000,
        16,
        256,
        DType.F16,
        DType.F16,
        tuple(step for layer in LAYERS for step in (PRODUCT, *layer))[1:],
        (64, 32),
    ),
    GemmProblem(50_000, 64, 64, DType.F16, DType.F16, STORED, (256,)),
    *(
        ConvProblem(
            16,
            56,
            56,
            64,
            64,
            1,
            1,
            56,
            56,
            (0,) * 4,
            (1, 1),
            (1, 1),
            1,
            DType.F16,
            DType.F16,
            chain,
            inner=(256,),
        )
        for chain in (STORED, INNER)
    ),
)


@pytest.mark.skipif(ARCH != 90, reason="chains of this width are for sm_90a")
@pytest.mark.parametrize("several", SEVERAL, ids=lambda several: several.description)
def test_layers_in_one_kernel_and_one_after_the_other(
    profiler: Profiler, several: GemmProblem | ConvProblem
) -> None:
    """Both get the reference's answer, with parameters behind each layer, and where a result
    between them is stored or has a residual."""
    parts = (several, *several.layers)
    configs = [predict(part, ARCH)[0] for part in parts]
    made = dict(
        build([instance_of(part, config) for part, config in zip(parts, configs, strict=True)])
    )
    one, *apart = (
        (config, made[instance_of(part, config)])
        for part, config in zip(parts, configs, strict=True)
    )
    (together,) = profiler.measure(several, [one])
    kernels = [(config, library, 1) for config, library in apart if isinstance(library, Path)]
    behind, serial = (
        profiler.measure_apart(several, kernels, overlap=overlap) for overlap in (True, False)
    )
    for measured in (together, behind, serial):
        assert measured.status is Status.OK, measured
        assert 0 < measured.error <= KERNEL[DType.F16]
    # without programmatic dependent launch each kernel waits for the one before
    assert together.us < behind.us < serial.us


@pytest.mark.skipif(ARCH != 90, reason="gated units are for sm_90a")
@pytest.mark.parametrize(
    "sizes", [(4096, 8192, 2048), (16_384, 1152, 768), (1280, 1152, 768), (128, 8192, 2048)]
)
def test_a_gated_unit_takes_less_time_than_two_products(
    profiler: Profiler, sizes: tuple[int, int, int]
) -> None:
    unit = GluProblem(*sizes, DType.F16, DType.F16, ("Silu", "Gate"))
    together, *apart = (
        min(_measured(profiler, problem), key=lambda measured: measured.us).us
        for problem in (unit, *unit.apart)
    )
    assert together < sum(apart), (together, apart)


@pytest.mark.parametrize("sizes", [(4096, 3072, 2048), (6144, 2304, 768), (128, 3072, 2048)])
def test_a_rotation_takes_less_time_than_an_elementwise_kernel(
    profiler: Profiler, sizes: tuple[int, int, int]
) -> None:
    """One that reads and writes what is rotated once; models have several."""
    m, n, k = sizes
    columns, chain = n // 3 * 2, ("Bias", "Rotate")
    problem = RotaryProblem(m, n, k, DType.F16, DType.F16, chain, columns, m // 2, 64)
    together, alone = (
        min(_measured(profiler, each), key=lambda measured: measured.us).us
        for each in (problem, problem.apart)
    )
    behind = elementwise_us(2 * m * columns * DType.F16.bytes, get(ARCH))
    assert together < alone + behind, (together, alone, behind)


def _measured(
    profiler: Profiler, problem: GemmProblem | GluProblem | RotaryProblem
) -> list[Measurement]:
    """The kernels that are predicted to be fastest."""
    configs = {instance_of(problem, c): c for _, c in ranked(problem, get(ARCH))[:8]}
    built = build(configs)
    kernels = [(configs[each], library) for each, library in built if isinstance(library, Path)]
    found = profiler.measure(problem, kernels, sweep=False)
    assert {measured.status for measured in found} == {Status.OK}, found
    return found


def test_refusals(profiler: Profiler, libraries: dict[Instance, Path]) -> None:
    odd = dataclasses.replace(GEMM, k=765)
    for measurement in profiler.measure(odd, candidates(libraries, GEMMS)):
        assert measurement.status is Status.REFUSED
        assert "not aligned" in measurement.detail


def test_planted_kernels_harm_none_but_themselves(
    profiler: Profiler,
    libraries: dict[Instance, Path],
    planted: dict[str, tuple[KernelConfig, Path]],
) -> None:
    good = candidates(libraries, GEMMS)
    mixed = [
        good[0],
        planted["Crash"],
        good[1],
        planted["Hang"],
        planted["Zero"],
        planted["Pixel"],
        good[2],
    ]
    measured = profiler.measure(GEMM, mixed, timeout=3.0)
    expected = [
        Status.OK,
        Status.CRASHED,
        Status.OK,
        Status.TIMEOUT,
        Status.WRONG,
        Status.WRONG,
        Status.OK,
    ]
    assert [m.status for m in measured] == expected, measured
    for measurement in (measured[0], measured[2], measured[6]):
        check(measurement, GEMM.flops)
    assert "illegal" in measured[1].detail
    assert measured[4].error == pytest.approx(1.0)
    assert measured[5].error <= KERNEL[DType.F16]  # one value of 786,432
    assert "one element" in measured[5].detail
    assert all(m.us == 0 for m in measured if m.status is not Status.OK)
