"""Kernels of GEMMs with few rows on the host, against float64: types, alignments, tails of rows,
columns and k, clusters, gates, epilogues."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, gates
from onnxbolt.families.gemm_skinny import GemmSkinnyConfig
from onnxbolt.ops.glu import TURN
from tests.custom_ops.host_kernels import compile_kernels
from tests.gpu.cases import PARAMS
from tests.gpu.device import Epilogue, Gemm
from tests.gpu.reference import LIMITS, epilogue, rounded


def _instance(
    arch: int,
    dtype: DType,
    numbers: tuple[int, int, int, int, int, int],
    *chain: str,
    out: DType | None = None,
) -> Instance:
    """`numbers`: rows, columns, warps, steps, elements of an access along k and along n."""
    rows, columns, warps, steps, access_k, access_n = numbers
    config = GemmSkinnyConfig(
        arch=arch,
        rows=rows,
        columns=columns,
        instruction=get(arch).mma[dtype],
        steps=steps,
        warps=warps,
        access_k=access_k,
        access_n=access_n,
    )
    return Instance(config, dtype, out or dtype, chain)


INSTANCES = (
    _instance(90, DType.F16, (8, 8, 8, 2, 8, 8), "Bias"),
    _instance(90, DType.F16, (16, 32, 4, 2, 8, 8), "Bias", "LeakyRelu", "Mul", "Add"),
    _instance(90, DType.BF16, (16, 16, 8, 4, 4, 2), out=DType.F32),
    _instance(80, DType.F32, (8, 16, 4, 4, 4, 4), "Scale", "Bias", "Relu"),
    _instance(90, DType.F32, (16, 8, 4, 2, 1, 1), "Add"),
    _instance(75, DType.F16, (16, 16, 4, 2, 2, 4), "Bias"),
    _instance(75, DType.F16, (8, 8, 16, 8, 8, 1)),
    _instance(90, DType.F16, (8, 32, 4, 2, 8, 8), "Relu", "GateBias", "Add"),
    _instance(80, DType.BF16, (16, 16, 4, 4, 8, 8), "Gate"),
)
# rows; accesses along n and along k
SHAPES = ((1, 4, 24), (8, 5, 130), (16, 17, 64), (3, 1, 1), (11, 40, 9), (35, 3, 50))


@dataclass(frozen=True)
class Case:
    """a [M, K], b [N, K] with its gates' rows, vectors [N] and tensors [M, N]."""

    a: np.ndarray
    b: np.ndarray
    vectors: tuple[np.ndarray, ...]
    tensors: tuple[np.ndarray, ...]
    chain: tuple[str, ...]

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return len(self.b) // (1 + gates(self.chain))

    def expected(self) -> np.ndarray:
        """In float64."""
        m, n = len(self.a), self.columns
        product = self.a.astype(np.float64) @ self.b.astype(np.float64).T
        halves = product.reshape(m, -1, 2, TURN) if gates(self.chain) else product[:, :, None]
        first, *others = (halves[:, :, i].reshape(m, n) for i in range(halves.shape[2]))
        return epilogue(first, self.chain, self.vectors, self.tensors, *others)


def _case(instance: Instance, shape: tuple[int, int, int], seed: int) -> Case:
    config, rng = instance.config, np.random.default_rng(seed)
    assert isinstance(config, GemmSkinnyConfig)
    m, n, k = shape[0], shape[1] * config.access_n, shape[2] * config.access_k
    kinds = [EPILOGUES[step].operand for step in instance.chain]
    a = rounded(rng.normal(0, 1, (m, k)), instance.dtype)
    b = rounded(rng.normal(0, k**-0.5, ((1 + gates(instance.chain)) * n, k)), instance.dtype)
    vectors = (rng.normal(0.4, 0.7, n).astype(np.float32) for _ in range(kinds.count("vector")))
    tensors = (
        rng.normal(0, 1, (m, n)).astype(instance.dtype.numpy) for _ in range(kinds.count("tensor"))
    )
    return Case(a, b, tuple(vectors), tuple(tensors), instance.chain)


def _apart(x: np.ndarray, gap: int) -> np.ndarray:
    """A copy with NaNs behind each row."""
    room = np.full((len(x), x.shape[1] + gap), np.nan, x.dtype)
    room[:, : x.shape[1]] = x
    return room


class HostGemm:
    """The compiled kernels of INSTANCES."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.host_multiply.restype = ctypes.c_char_p

    def run(self, index: int, case: Case, split: int = 1, gap: int = 0) -> np.ndarray:
        """y of the instance at `index`; `gap`: accesses between rows. Raises ValueError with the
        text of a refusal."""
        instance = INSTANCES[index]
        config = instance.config
        assert isinstance(config, GemmSkinnyConfig)
        row = dataclasses.replace(config, split=split).row()
        (m, k), n = case.a.shape, case.columns
        a, b = (_apart(x, gap * config.access_k) for x in (case.a, case.b))
        tensors = [_apart(tensor, gap * config.access_n) for tensor in case.tensors]
        y = _apart(np.full((m, n), np.nan, instance.out.numpy), gap * config.access_n)
        arguments = Epilogue()
        for i, vector in enumerate(case.vectors):
            arguments.vectors[i] = vector.ctypes.data
        for i, tensor in enumerate(tensors):
            arguments.tensors[i], arguments.tensor_pitch[i] = tensor.ctypes.data, tensor.shape[1]
        params = [number for step in case.chain for number in PARAMS.get(step, ())]
        arguments.params[: len(params)] = params
        pointers = (x.ctypes.data for x in (a, b, y))
        gemm = Gemm(m, n, k, *pointers, a.shape[1], b.shape[1], y.shape[1], arguments)
        numbers = (ctypes.c_int64 * len(row))(*row)
        if error := self._library.host_multiply(index, numbers, ctypes.byref(gemm)):
            raise ValueError(error.decode())
        assert np.isnan(y[:, n:].astype(np.float32)).all()
        return y[:, :n].astype(np.float64)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostGemm:
    directory = tmp_path_factory.mktemp("gemm_skinny")
    return HostGemm(compile_kernels("gemm_skinny.cc", INSTANCES, directory))


def _splits(index: int) -> tuple[int, ...]:
    return (1, 2, 3, 8) if INSTANCES[index].config.arch == 90 else (1,)


@pytest.mark.parametrize("index", range(len(INSTANCES)), ids=lambda i: f"instance{i}")
def test_answers_are_those_of_float64(kernels: HostGemm, index: int) -> None:
    """More rows than a block takes are right, too."""
    for seed, shape in enumerate(SHAPES):
        case = _case(INSTANCES[index], shape, seed)
        expected = case.expected()
        for split in _splits(index):
            y = kernels.run(index, case, split, gap=seed % 3)
            error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
            assert error <= LIMITS[INSTANCES[index].dtype], (shape, split)


@pytest.mark.parametrize("index", [0, 1])
def test_a_row_s_answer_does_not_depend_on_the_others(kernels: HostGemm, index: int) -> None:
    case = _case(INSTANCES[index], (7, 8, 40), 0)
    one = dataclasses.replace(
        case, a=case.a[2:3], tensors=tuple(tensor[2:3] for tensor in case.tensors)
    )
    for split in _splits(index):
        y = kernels.run(index, case, split)
        assert np.array_equal(y[2:3], kernels.run(index, one, split))


def test_values_that_are_not_finite_stay_in_their_row(kernels: HostGemm) -> None:
    """Rows and columns that are filled up are multiplied, and not stored."""
    case = _case(INSTANCES[0], (5, 3, 20), 0)
    case.a[3, 7] = np.inf
    found = np.isfinite(kernels.run(0, case, 2)).all(1)
    assert found.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"k": 161}, "not aligned to align_a"),
        ({"lda": 161}, "not aligned to align_a"),
        ({"ldd": 33}, "not aligned to align_c"),
        ({"m": 1 << 31}, "exceeds 2"),
        ({"m": (1 << 31) - 1, "n": 1 << 12}, "exceeds the kernel's range"),
        ({"k": 1 << 30}, "exceeds the kernel's range"),
        ({"epilogue": Epilogue()}, "an epilogue vector is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_refusals(kernels: HostGemm, change: dict[str, object], text: str) -> None:
    case, row = _case(INSTANCES[0], (1, 4, 20), 0), INSTANCES[0].config.row()
    vectors = Epilogue()
    vectors.vectors[0] = case.vectors[0].ctypes.data
    y = np.zeros((1, 32), np.float16)
    pointers = (x.ctypes.data for x in (case.a, case.b, y))
    gemm = Gemm(1, 32, 160, *pointers, 160, 160, 32, vectors)
    for name, value in change.items():
        setattr(gemm, name, value)
    library = kernels._library
    numbers = (ctypes.c_int64 * len(row))(*row)
    error = library.host_multiply(0, numbers, ctypes.byref(gemm))
    assert error is not None
    assert text in error.decode()
