"""Products of codes of 8 bits on a GPU: every instance against exact sums, k split over clusters,
the same bits on every run, codes that saturate, NaN and infinity, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.blocks.codes import CodesConfig, Offsets
from tests.gpu import quantized
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library, Tensor
from tests.gpu.problems import limit, problems
from tests.gpu.quantized import Coded, GemmShape
from tests.gpu.quantized_cases import FAMILIES
from tests.gpu.sm90_cases import splits

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family in FAMILIES]
GEMMS, CONVS = (
    [instance for instance in KERNELS if instance.config.family is family] for family in FAMILIES
)
SPLITTING = [instance for instance in KERNELS if splits(instance)]
RUNS = 50
TOO_FEW_BLOCKS = "split_k exceeds the number of k-blocks"
SHAPE = GemmShape(130, 4, 96)


def _right(instance: Instance, problem: Coded, where: object = "") -> None:
    answer = problem.output.read()
    if instance.out.is_code:
        assert problem.wrong(answer) == 0, (problem.output.shape, where)
    if problem.beside is not None:
        assert problem.beside.wrong() == 0, (problem.output.shape, where)
    assert problem.error(answer) <= limit(instance), (problem.output.shape, where)


def _with(out: DType, chain: Sequence[str], kernels: Sequence[Instance] = GEMMS) -> Instance:
    """One with a result of this type and these steps among its own."""
    return next(k for k in kernels if k.out is out and set(chain) <= set(k.chain))


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        kernel.launch(problem.arguments)
        _right(instance, problem)


@pytest.mark.parametrize("instance", SPLITTING, ids=instance_name)
def test_k_split_over_a_cluster(library: Library, instance: Instance) -> None:
    kernel, launched = library.kernel(instance), set()
    config = instance.config
    assert isinstance(config, CodesConfig)
    deep = [*problems(library, instance)[-2:]]
    if instance in GEMMS:
        deep.append(quantized.gemm(library, instance, GemmShape(130, 6, 8 * config.k - 16, 1)))
    for problem in deep:
        for split in splits(instance):
            problem.output.empty()
            if problem.beside is not None:
                problem.beside.output.empty()
            try:
                kernel.launch(problem.arguments, split_k=split)
            except KernelError as error:
                if TOO_FEW_BLOCKS in str(error):
                    continue
                raise
            _right(instance, problem, split)
            launched.add(split)
    assert launched


@pytest.mark.parametrize("instance", KERNELS[::4], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel, problem = library.kernel(instance), problems(library, instance)[-1]
    answers = set()
    for run in range(RUNS):
        kernel.launch(problem.arguments, captured=run % 2 == 1)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("out", [DType.I8, DType.U8, DType.E4M3])
def test_codes_saturate(library: Library, out: DType, centred: bool) -> None:
    """A scale of the result so small that most values lie beyond the last codes."""
    instance = _with(out, ("Bias",))
    problem = quantized.gemm(library, instance, SHAPE, scales=(0.03, 1e-4), centred=centred)
    library.kernel(instance).launch(problem.arguments)
    _right(instance, problem)
    answer, (last,) = problem.output.read().astype(np.float64), {problem.high.max()}
    assert last == {DType.I8: 127, DType.U8: 255, DType.E4M3: 448}[out]
    assert np.mean(answer == last) > 0.3


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("out", [DType.I8, DType.U8, DType.E4M3, DType.F16])
def test_values_that_are_not_finite(library: Library, out: DType, centred: bool) -> None:
    """Behind a bias that is not finite: codes of integers saturate, and NaN is the zero point;
    E4M3FN saturates and keeps NaN."""
    instance = _with(out, ("Bias", "Relu") if out is not DType.F16 else ("Bias",))
    bias = np.zeros(quantized.columns_of(instance, SHAPE.n), np.float32)
    bias[3], bias[17], bias[30] = np.inf, -np.inf, np.nan
    problem = quantized.gemm(library, instance, SHAPE, bias=bias, centred=centred)
    library.kernel(instance).launch(problem.arguments)
    answer = problem.output.read().astype(np.float64)
    zero, last = {
        DType.I8: (-7.0, 127.0),
        DType.U8: (113.0, 255.0),
        DType.E4M3: (0.0, 448.0),
        DType.F16: (0.0, np.inf),
    }[out]
    zero *= not centred
    assert (answer[:, 3] == last).all()
    if "Relu" in instance.chain:
        assert (answer[:, 17] == zero).all()
    if out in (DType.E4M3, DType.F16):
        assert np.isnan(answer[:, 30]).all()
    else:
        assert (answer[:, 30] == zero).all()
    finite = np.isfinite(bias)
    others = answer[:, finite]
    assert np.isfinite(others).all()
    if out is not DType.F16:
        assert ((others >= problem.low[:, finite]) & (others <= problem.high[:, finite])).all()


@pytest.mark.parametrize("out", [DType.E4M3, DType.F16])
def test_nan_among_the_codes_of_x_reaches_its_row_alone(library: Library, out: DType) -> None:
    chain = ("Bias", "Relu") if out is DType.E4M3 else ("Bias",)
    kernels = [each for each in GEMMS if each.dtype is DType.E4M3]
    instance = _with(out, chain, kernels)
    problem = quantized.gemm(library, instance, SHAPE)
    a = problem.kept[0]
    assert isinstance(a, Tensor)
    codes = a.read().reshape(a.shape)
    codes[7, 3] = np.nan
    poisoned = Tensor(library, codes)
    problem.arguments.a, problem.arguments.lda = poisoned.pointer, poisoned.pitch
    library.kernel(instance).launch(problem.arguments)
    answer = problem.output.read().astype(np.float64)
    assert np.isnan(answer[7]).all()
    assert np.isfinite(np.delete(answer, 7, axis=0)).all()


def test_one_scale_of_the_weights(library: Library) -> None:
    """The scales of all channels are one."""
    instance = _with(DType.I8, ("Bias",))
    problem = quantized.gemm(library, instance, SHAPE, one_scale=True)
    library.kernel(instance).launch(problem.arguments)
    _right(instance, problem)


@pytest.mark.parametrize("k", [1, 2, 15, 17, 31, 64, 129, 1000, 4096, 8191, 8192])
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.E4M3])
def test_depths(library: Library, dtype: DType, k: int) -> None:
    """From 1 to 8,192, the rest of an access padded."""
    instance = next(
        each
        for each in GEMMS
        if each.dtype is each.out is dtype and not each.config.resident  # type: ignore[attr-defined]
    )
    problem = quantized.gemm(library, instance, GemmShape(66, 3, k))
    library.kernel(instance).launch(problem.arguments)
    _right(instance, problem)


def test_an_empty_problem_is_no_launch(library: Library) -> None:
    problem = problems(library, GEMMS[0])[1]
    problem.arguments.m = 0
    kernel = library.kernel(GEMMS[0])
    kernel.check(problem.arguments)
    kernel.launch(problem.arguments)
    assert (problem.output.read().view(np.uint8) == 0xFF).all()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("lda", 24, "A, its pitch or k"),
        ("k", 8, "A, its pitch or k"),
        ("ldb", 24, "B, its pitch or k"),
        ("n", 8, "D, its pitch or n"),
        ("ldd", 24, "D, its pitch or n"),
    ],
)
def test_gemm_refuses(library: Library, field: str, value: int, text: str) -> None:
    instance = _with(DType.I8, ())
    problem = quantized.gemm(library, instance, SHAPE)
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def _of(offsets: Offsets, kernels: Sequence[Instance]) -> Instance:
    return next(
        each
        for each in kernels
        if isinstance(each.config, CodesConfig) and each.config.offsets is offsets
    )


@pytest.mark.parametrize(
    ("offsets", "field", "value", "text"),
    [
        (Offsets.NONE, "groups", 2, "in one group"),
        (Offsets.NONE, "c", 24, "align_a"),
        (Offsets.NONE, "y_pitch", 24, "align_c"),
        (Offsets.NONE, "stride_w", 9, "exceeds TMA's 8"),
        (Offsets.BY_PIXEL, "dilation_w", 2, "other classes of pixels"),
        (Offsets.BY_COLUMN, "pad_left", 1, "the same offsets for all pixels"),
    ],
)
def test_conv_refuses(
    library: Library, offsets: Offsets, field: str, value: int, text: str
) -> None:
    instance = _of(offsets, CONVS)
    problem = problems(library, instance)[0]  # the first with pads has all of them
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def test_offsets_and_kernels_that_do_not_fit_are_refused(library: Library) -> None:
    plain, offset = _of(Offsets.NONE, GEMMS), _of(Offsets.BY_COLUMN, GEMMS)
    without, with_table = (quantized.gemm(library, each, SHAPE) for each in (plain, offset))
    with_table.arguments.offsets.classes = 2
    with pytest.raises(KernelError, match="other classes"):
        library.kernel(offset).check(with_table.arguments)
    with_table.arguments.offsets.values = None
    with pytest.raises(KernelError, match="offsets of the zero point of x are missing"):
        library.kernel(offset).check(with_table.arguments)
    without.arguments.offsets.values = without.output.pointer
    with pytest.raises(KernelError, match="adds no offsets"):
        library.kernel(plain).check(without.arguments)


def _storing() -> Instance:
    return next(each for each in GEMMS if each.chain[-2] == "StoreF16" and "AddF16" in each.chain)


def test_values_and_kernels_that_do_not_fit_are_refused(library: Library) -> None:
    plain, storing = _of(Offsets.NONE, GEMMS), _storing()
    without, with_values = (quantized.gemm(library, each, SHAPE) for each in (plain, storing))
    kernel = library.kernel(storing)
    kernel.check(with_values.arguments)
    with_values.arguments.epilogue.tensor_pitch[0] += 4
    with pytest.raises(KernelError, match="its pitch is not aligned"):
        kernel.check(with_values.arguments)
    with_values = quantized.gemm(library, storing, SHAPE)
    with_values.arguments.values = None
    with pytest.raises(KernelError, match="no place for the values"):
        kernel.check(with_values.arguments)
    without.arguments.values = without.output.pointer
    with pytest.raises(KernelError, match="the result is to be written as values, too"):
        library.kernel(plain).check(without.arguments)


@pytest.mark.parametrize("out", [DType.I8, DType.U8, DType.E4M3])
def test_values_beside_codes_saturate_and_keep_nan_by_themselves(
    library: Library, out: DType
) -> None:
    """Values are rounded to their own type, whatever becomes of the codes."""
    instance = _with(out, ("Bias", "Relu", "StoreF16"))
    bias = np.zeros(quantized.columns_of(instance, SHAPE.n), np.float32)
    bias[3], bias[17], bias[30], bias[40] = np.inf, -np.inf, np.nan, 1e6
    problem = quantized.gemm(library, instance, SHAPE, bias=bias)
    library.kernel(instance).launch(problem.arguments)
    assert problem.beside is not None
    values = problem.beside.output.read().astype(np.float64)
    assert np.isinf(values[:, 3]).all()
    assert (values[:, 17] == 0).all()
    assert np.isnan(values[:, 30]).all()
    assert np.isinf(values[:, 40]).all()


def test_each_form_is_met() -> None:
    """Both families have every type of x and of results, and all kinds of offsets."""
    for kernels in (GEMMS, CONVS):
        assert {each.dtype for each in kernels} == {DType.I8, DType.U8, DType.E4M3}
        assert {each.out for each in kernels} == set(DType)
    assert named("quantized_gemm_sm90") in FAMILIES
    assert {each.config.offsets for each in CONVS if isinstance(each.config, CodesConfig)} == set(
        Offsets
    )
