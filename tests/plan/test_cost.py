"""The cost model against measurements on one H200 (fp16, batch 32, microseconds), and its
monotony."""

import dataclasses

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families import named
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.onnxruntime_time import elementwise_us, library_us, pool_us, transpose_us
from onnxbolt.plan.cost import candidates, fused_us, layout_us, ort_us, predict, ranked, supports
from onnxbolt.problems import ConvProblem, GemmProblem

H200 = get(90)
FACTOR = 1.5  # how far prediction and measurement may lie apart, either way

# image size, input channels, output channels, filter, stride: cuDNN's convolution; with PyTorch's
# bias and ReLU kernels; the best CUTLASS 2.x implicit GEMM with both fused
CONVS = [
    ((56, 64, 64, 3, 1), 24.3, 44.3, 29.0),
    ((56, 64, 256, 1, 1), 22.6, 118, 36.1),
    ((56, 256, 64, 1, 1), 18.8, 38.4, 26.4),
    ((28, 128, 128, 3, 1), 20.1, 32.0, 25.4),
    ((14, 256, 256, 3, 1), 17.9, 25.4, 25.3),
    ((7, 512, 512, 3, 1), 18.1, 23.1, 30.0),
    ((112, 48, 48, 3, 2), 26.9, 43.8, 36.8),
    ((56, 48, 48, 3, 1), 25.2, 41.5, 27.9),
    ((14, 192, 192, 3, 1), 16.7, 23.9, 20.4),
    ((224, 64, 64, 3, 1), 259, 633, 412),
    ((112, 128, 128, 3, 1), 180, 380, 304),
    ((56, 256, 256, 3, 1), 165, 284, 283),
    ((28, 512, 512, 3, 1), 158, 212, 265),
]
# m, n, k: cuBLAS
GEMMS = [
    ((1280, 3072, 768), 11.7),
    ((1280, 768, 3072), 10.8),
    ((1280, 768, 768), 5.0),
    ((4096, 4096, 4096), 182),
]
# m, k, n of the first, n of the second: two cuBLAS products
PAIRS = [
    ((16384, 256, 64, 16), 8.6),
    ((32768, 576, 128, 64), 26.8),
    ((128320, 96, 32, 96), 42.8),
    ((32768, 256, 256, 64), 25.6),
]


def _conv(
    size: int,
    c: int,
    k: int,
    r: int,
    stride: int,
    chain: tuple[str, ...] = ("Bias", "Relu"),
    batch: int = 32,
) -> ConvProblem:
    pad = r // 2
    out = (size + 2 * pad - r) // stride + 1
    return ConvProblem(
        batch,
        size,
        size,
        c,
        k,
        r,
        r,
        out,
        out,
        (pad,) * 4,
        (stride,) * 2,
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        chain,
    )


def _gemm(
    m: int, n: int, k: int, chain: tuple[str, ...] = (), dtype: DType = DType.F16
) -> GemmProblem:
    return GemmProblem(m, n, k, dtype, dtype, chain)


def _near(predicted: float, measured: float) -> bool:
    return 1 / FACTOR <= predicted / measured <= FACTOR


@pytest.mark.parametrize(("shape", "cudnn", "unfused", "fused"), CONVS)
def test_convolutions_on_the_h200(
    shape: tuple[int, int, int, int, int], cudnn: float, unfused: float, fused: float
) -> None:
    problem = _conv(*shape)
    assert _near(
        min(
            fused_us(problem, config, H200) for config in named("conv_2x").candidates(problem, H200)
        ),
        fused,
    )
    assert _near(library_us(problem, H200), cudnn)
    # cuDNN fuses one of bias and ReLU, which cost about alike
    assert _near(ort_us(problem, H200), (cudnn + unfused) / 2)


# output channels, filter, stride of a first convolution of 224 x 224 fp32 images, as our own kernel
# for sm_90a takes them
FIRST = [(64, 7, 2, 26.8), (64, 3, 1, 60.8), (48, 3, 2, 19.8), (16, 3, 2, 12.3)]


@pytest.mark.parametrize(("k", "r", "stride", "measured"), FIRST)
def test_first_convolutions_on_the_h200(k: int, r: int, stride: int, measured: float) -> None:
    config, us = predict(dataclasses.replace(_conv(224, 3, k, r, stride), nchw=True), 90)
    assert config.family is named("stem_sm90")
    assert _near(us, measured)


def test_changes_of_layout_on_the_h200() -> None:
    """fp32 to four channels of fp16; 64 channels of fp16."""
    assert _near(layout_us(32 * 224 * 224 * (3 * 4 + 4 * 2), H200), 10.5)
    assert _near(layout_us(32 * 56 * 56 * 64 * 4, H200), 10.8)


def test_a_first_layer_of_three_channels_on_the_h200() -> None:
    # a kernel of its own where this was measured
    bias = elementwise_us(2 * 32 * 112 * 112 * 64 * 2, H200)
    assert _near(ort_us(_conv(224, 3, 64, 7, 2), H200), 226 - bias)


@pytest.mark.parametrize(("shape", "cublas"), GEMMS)
def test_library_products_on_the_h200(shape: tuple[int, int, int], cublas: float) -> None:
    assert _near(library_us(_gemm(*shape), H200), cublas)


@pytest.mark.parametrize(("shape", "cublas"), PAIRS)
def test_narrow_library_products_on_the_h200(
    shape: tuple[int, int, int, int], cublas: float
) -> None:
    m, k, n0, n1 = shape
    assert _near(library_us(_gemm(m, n0, k), H200) + library_us(_gemm(m, n1, n0), H200), cublas)


def test_the_measured_best_tile_is_chosen_for_few_channels() -> None:
    for channels in (48, 64):
        problem = _conv(56, channels, channels, 3, 1)
        config = min(
            named("conv_2x").candidates(problem, H200),
            key=lambda c: fused_us(problem, c, H200),
        )
        assert (config.tile, config.stages) == ((256, 64, 32), 4)


@pytest.mark.parametrize("number", ARCHS)
def test_no_prediction_is_faster_than_the_data_sheet(number: int) -> None:
    arch = get(number)
    for problem in (_gemm(4096, 4096, 4096), _conv(56, 256, 256, 3, 1)):
        floor = problem.flops / arch.flops[DType.F16] * 1e6
        assert predict(problem, number)[1] > floor
        assert ort_us(problem, arch) > floor
        assert predict(problem, number)[1] < 4 * floor


@pytest.mark.parametrize("number", ARCHS)
def test_fusing_an_epilogue_costs_less_than_its_own_kernel(number: int) -> None:
    arch = get(number)
    for bare, chained in (
        (_conv(28, 128, 128, 3, 1, ()), _conv(28, 128, 128, 3, 1, ("Bias", "Add", "Relu"))),
        (_gemm(4096, 1024, 1024), _gemm(4096, 1024, 1024, ("Bias", "Relu"))),
    ):
        fused = predict(chained, number)[1] - predict(bare, number)[1]
        unfused = ort_us(chained, arch) - ort_us(bare, arch)
        assert 0 < fused < unfused


def test_more_work_takes_longer() -> None:
    times = [predict(_conv(28, 128, 128, 3, 1, batch=batch), 80)[1] for batch in (1, 8, 32, 128)]
    assert times == sorted(times)
    config, _ = predict(_gemm(4096, 4096, 4096), 80)
    deep = [fused_us(_gemm(4096, 4096, k), config, get(80)) for k in (64, 512, 4096)]
    assert deep == sorted(deep)


def test_small_problems_get_small_tiles() -> None:
    def area(m: int) -> int:
        config, _ = predict(_gemm(m, 1024, 1024), 80)
        assert isinstance(config, Gemm2xConfig)
        return config.tile[0] * config.tile[1]

    assert area(64) < area(16384)


def test_narrow_accesses_cost() -> None:
    config, us = predict(_gemm(4096, 1024, 1024), 80)
    assert isinstance(config, Gemm2xConfig)
    narrow = dataclasses.replace(config, access_k=2)
    assert fused_us(_gemm(4096, 1024, 1024), narrow, get(80)) > us


def test_onnx_runtime_fuses_bias_with_gelu_and_relu_only_in_fp32() -> None:
    def steps(chain: tuple[str, ...], dtype: DType = DType.F16) -> int:
        extra = ort_us(_gemm(4096, 1024, 1024, chain, dtype), H200) - library_us(
            _gemm(4096, 1024, 1024, chain, dtype), H200
        )
        return round(extra / elementwise_us(2 * 4096 * 1024 * dtype.bytes, H200))

    assert steps(("Bias", "Relu")) == 2
    assert steps(("Bias", "GeluErf")) == 1
    assert steps(("Bias", "HardSwish")) == 3
    assert steps(("Bias",), DType.F32) == 0
    bare, biased = (ort_us(_conv(28, 128, 128, 3, 1, chain), H200) for chain in ((), ("Bias",)))
    assert bare == biased
    fp32 = dataclasses.replace(
        _conv(28, 128, 128, 3, 1, ("Bias", "Add", "Relu")), dtype=DType.F32, out=DType.F32
    )
    assert ort_us(fp32, H200) == library_us(fp32, H200)


def test_hopper_prefers_wgmma_for_large_products() -> None:
    assert predict(_gemm(4096, 4096, 4096), 90)[0].family in (named("gemm_3x"), named("gemm_sm90"))


def test_what_has_no_kernel_is_refused_with_a_remedy() -> None:
    bf16 = _gemm(64, 64, 64, dtype=DType.BF16)
    assert not supports(bf16, 75)
    assert supports(bf16, 80)
    with pytest.raises(InputError, match=r"sm_75: no kernel.*another architecture"):
        predict(bf16, 75)


def test_memory_bound_kernels_grow_with_bytes() -> None:
    assert elementwise_us(0, H200) == H200.launch_us
    assert transpose_us(10**7, DType.F16, H200) > elementwise_us(4 * 10**7, H200) > 0
    assert pool_us(10**7, 10**6, DType.F32, H200) > pool_us(10**7, 10**6, DType.F16, H200)


def test_support_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _conv(13, 40, 72, 3, 1)  # nobody else's
    assert supports(problem, 90)
    monkeypatch.setattr("onnxbolt.plan.cost.candidates", lambda *_: pytest.fail("asked again"))
    assert supports(problem, 90)


def test_candidates_are_ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models repeat their layers: a node costs no more than a look-up."""
    problem = _conv(13, 40, 80, 3, 1)  # nobody else's
    expected = predict(problem, 90)
    ours, theirs = ranked(problem, H200), ort_us(problem, H200)
    assert [(config, us) for us, config in ours[:1]] == [expected]
    assert list(ours) == sorted(
        (fused_us(problem, config, H200), config) for config in candidates(problem, H200)
    )
    for name in ("plan.cost.candidates", "plan.cost.fused_us", "problems.product.library_us"):
        monkeypatch.setattr(f"onnxbolt.{name}", lambda *_: pytest.fail("asked again"))
    assert (ranked(problem, H200), ort_us(problem, H200)) == (ours, theirs)
