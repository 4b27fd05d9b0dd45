"""Group normalization's kernels on the host, against float64: parts, blocks, clusters, tails, large
means, vectors of each image, epilogues."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families.group_norm import GroupNormConfig
from tests.custom_ops.host_kernels import compile_kernels
from tests.gpu.device import Epilogue, GroupNorm

LIMITS = {DType.F16: 6e-4, DType.BF16: 5e-3, DType.F32: 2e-6}
EPSILON = 1e-5
SLOPE = 0.25


def _instance(
    arch: int, dtype: DType, threads: int, access: int, resident: bool, *chain: str
) -> Instance:
    config = GroupNormConfig(arch=arch, threads=threads, access=access, resident=resident)
    return Instance(config, dtype, dtype, chain)


INSTANCES = (
    _instance(90, DType.F16, 64, 8, True),
    _instance(90, DType.F16, 96, 8, False),
    _instance(90, DType.F32, 64, 4, True, "LeakyRelu"),
    _instance(80, DType.BF16, 64, 8, False, "LeakyRelu"),
    _instance(80, DType.BF16, 64, 2, True, "Relu", "Add"),
    _instance(75, DType.F16, 128, 4, False, "Add", "LeakyRelu"),
    _instance(75, DType.F32, 64, 1, True),
    _instance(90, DType.F32, 64, 1, False, "Scale", "Mul"),
)
# images, pixels, channels, groups, channels of a block, blocks
SHAPES = (
    (1, 64, 64, 8, 1, 1),
    (2, 37, 80, 4, 1, 3),
    (3, 50, 48, 48, 32, 4),  # instances
    (2, 49, 40, 1, 1, 2),  # one group
    (1, 100, 24, 3, 24, 8),
    (2, 9, 96, 4, 48, 8),  # blocks without pixels
    (1, 7, 1200, 2, 1, 2),  # more accesses than threads
    (2, 33, 120, 6, 40, 5),  # the last part is smaller
    (1, 1, 32, 4, 1, 1),
    (1, 3000, 32, 4, 8, 2),
    (1, 4100, 64, 4, 64, 1),
)


@dataclass(frozen=True)
class Case:
    """x [N, P, C], vectors of each image [N, C], vectors of channels, and tensors [N, P, C]."""

    x: np.ndarray
    groups: int
    gamma: np.ndarray
    beta: np.ndarray
    images: tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]
    vectors: tuple[np.ndarray, ...]
    tensors: tuple[np.ndarray, ...]

    def expected(self, chain: Sequence[str]) -> np.ndarray:
        """y in float64."""
        n, p, c = self.x.shape
        before, scale, shift = (
            0.0 if image is None else image.astype(np.float64)[:, None] for image in self.images
        )
        s = (self.x.astype(np.float64) + before).reshape(n, p, self.groups, c // self.groups)
        s = s - s.mean((1, 3), keepdims=True)
        s = s / np.sqrt((s * s).mean((1, 3), keepdims=True) + EPSILON)
        y = s.reshape(n, p, c) * self.gamma + self.beta
        y = y * (1 + scale) + shift
        vectors, tensors = iter(self.vectors), iter(self.tensors)
        for step in chain:
            if step == "Scale":
                y = y * next(vectors)
            elif step == "Mul":
                y = y * next(tensors).astype(np.float64)
            elif step == "Add":
                y = y + next(tensors).astype(np.float64)
            else:
                y = np.where(y > 0, y, (SLOPE if step == "LeakyRelu" else 0) * y)
        return y


def _case(instance: Instance, shape: Sequence[int], seed: int) -> Case:
    n, p, c, groups = shape[:4]
    rng, element = np.random.default_rng(seed), instance.dtype.numpy
    # means that are large beside the deviations: sums of squares would cancel
    mean = rng.normal(0, 40 if instance.dtype is not DType.BF16 else 2, (n, 1, c // 4))
    x = rng.normal(0, 1, (n, p, c)) + np.repeat(mean, 4, -1)
    given = (seed % 2 == 0, seed % 3 == 0, seed % 3 == 0)
    images = tuple(rng.normal(0, 1, (n, c)).astype(element) if has else None for has in given)
    vectors = [rng.normal(0.5, 1, c).astype(np.float32) for _ in range(3)]
    tensors = [rng.normal(0, 1, (n, p, c)).astype(element) for _ in instance.chain]
    assert len(images) == 3
    return Case(
        x.astype(element), groups, vectors[0], vectors[1], images, (vectors[2],), tuple(tensors)
    )


def _apart(x: np.ndarray, gap: int) -> np.ndarray:
    """A copy with NaNs behind each pixel."""
    room = np.full((*x.shape[:-1], x.shape[-1] + gap), np.nan, x.dtype)
    room[..., : x.shape[-1]] = x
    return room


class HostGroupNorm:
    """The compiled kernels of some instances."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.host_normalize.restype = ctypes.c_char_p

    def run(
        self, index: int, case: Case, part: int = 1, blocks: int = 1, gap: int = 0
    ) -> np.ndarray:
        """y of the instance at `index`. Raises ValueError with the text of a refusal."""
        config = INSTANCES[index].config
        assert isinstance(config, GroupNormConfig)
        row = dataclasses.replace(config, part=part, blocks=blocks).row()
        (n, p, c), pitch = case.x.shape, case.x.shape[-1] + gap
        x, *tensors = (_apart(tensor, gap) for tensor in (case.x, *case.tensors))
        y = np.full_like(x, np.nan)
        epilogue = Epilogue()
        for i, vector in enumerate(case.vectors):
            epilogue.vectors[i] = vector.ctypes.data
        for i, tensor in enumerate(tensors[:2]):
            epilogue.tensors[i], epilogue.tensor_pitch[i] = tensor.ctypes.data, pitch
        epilogue.params[0] = SLOPE
        images = (None if image is None else image.ctypes.data for image in case.images)
        arguments = GroupNorm(
            *(n, p, c, case.groups, EPSILON, x.ctypes.data, y.ctypes.data, pitch, pitch),
            *(case.gamma.ctypes.data, case.beta.ctypes.data, *images, epilogue),
        )
        numbers = (ctypes.c_int64 * len(row))(*row)
        if error := self._library.host_normalize(index, numbers, ctypes.byref(arguments)):
            raise ValueError(error.decode())
        assert np.isnan(y[..., c:].astype(np.float32)).all()
        return y[..., :c].astype(np.float64)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostGroupNorm:
    directory = tmp_path_factory.mktemp("group_norm")
    return HostGroupNorm(compile_kernels("group_norm.cc", INSTANCES, directory))


@pytest.mark.parametrize("index", range(len(INSTANCES)), ids=lambda i: f"instance{i}")
def test_answers_are_those_of_float64(kernels: HostGroupNorm, index: int) -> None:
    instance = INSTANCES[index]
    assert isinstance(instance.config, GroupNormConfig)
    for number, (*shape, part, blocks) in enumerate(SHAPES):
        case = _case(instance, shape, number)
        gap = instance.config.access * (number % 3)
        y, expected = kernels.run(index, case, part, blocks, gap), case.expected(instance.chain)
        error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
        assert error <= LIMITS[instance.dtype], (shape, part, blocks)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_an_image_s_answer_does_not_depend_on_the_others(
    kernels: HostGroupNorm, index: int
) -> None:
    case = _case(INSTANCES[index], (3, 50, 48, 8), 0)
    whole = kernels.run(index, case, 48, 4)
    images = tuple(None if image is None else image[1:2] for image in case.images)
    assert len(images) == 3
    one = dataclasses.replace(
        case, x=case.x[1:2], images=images, tensors=tuple(t[1:2] for t in case.tensors)
    )
    assert np.array_equal(whole[1:2], kernels.run(index, one, 48, 4))


def test_what_shared_memory_does_not_hold_is_read_again(kernels: HostGroupNorm) -> None:
    """A part of 512 KB in one block, and in a cluster of two."""
    case = _case(INSTANCES[0], (1, 8192, 32, 4), 1)
    expected = case.expected(())
    for blocks in (1, 2):
        y = kernels.run(0, case, 32, blocks)
        assert np.linalg.norm(y - expected) <= LIMITS[DType.F16] * np.linalg.norm(expected)


@pytest.mark.parametrize(("index", "blocks"), [(2, 8), (7, 264), (7, 1)])
def test_statistics_of_two_million_pixels(kernels: HostGroupNorm, index: int, blocks: int) -> None:
    """A volume of 128^3, and a few more pixels than parts divide."""
    instance, shape = INSTANCES[index], (1, 128**3 + 5, 4, 4)
    case = _case(instance, shape, 1)
    y, expected = kernels.run(index, case, 4, blocks), case.expected(instance.chain)
    assert np.linalg.norm(y - expected) <= LIMITS[DType.F32] * np.linalg.norm(expected)


def test_values_that_are_not_finite_stay_in_their_group(kernels: HostGroupNorm) -> None:
    case = _case(INSTANCES[1], (2, 37, 64, 4), 1)
    case.x[0, 5, 20], case.x[1, 9, 3] = np.inf, np.nan
    y = kernels.run(1, case, 16, 2)
    found = np.isnan(y).all(1).reshape(2, 4, 16).all(-1)
    assert found.tolist() == [[False, True, False, False], [True, False, False, False]]
    assert np.isnan(y).sum() == 2 * 37 * 16


def test_equal_values_become_beta(kernels: HostGroupNorm) -> None:
    """The variance is zero, not negative."""
    case = _case(INSTANCES[2], (1, 1000, 64, 4), 1)
    case.x[...] = 1234.5
    y = kernels.run(2, case, 64, 4)
    beta = np.where(case.beta > 0, case.beta, SLOPE * case.beta)
    assert np.allclose(y, beta, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "gap", "text"),
    [
        ((1, 4, 64, 7), 0, "do not divide the channels"),
        ((1, 4, 60, 4), 0, "not multiples of align_a"),
        ((1, 4, 64, 4), 3, "not multiples of align_a"),
        ((1, 1, 40000, 1), 0, "too many channels for shared memory"),
    ],
)
def test_refusals(kernels: HostGroupNorm, shape: tuple[int, ...], gap: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kernels.run(0, _case(INSTANCES[0], shape, 1), gap=gap)
