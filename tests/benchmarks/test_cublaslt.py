"""cuBLASLt's list through ctypes, against a library with its signatures that computes on the
host in fp32."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import cublaslt, peers
from benchmarks.cublaslt import Product, Shape
from onnxbolt.dtypes import DType
from onnxbolt.problems import GemmProblem

LIBRARY = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>
struct Layout { int type; uint64_t rows, columns; int64_t ld; };
struct Operation { int compute, scale; int32_t transposed[2]; };
struct Preference { uint64_t workspace; uint32_t alignments[4]; };
struct Algorithm { uint64_t data[8]; };
struct Result { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };
extern "C" {
int cublasLtCreate(void** handle) { return *handle = malloc(1), 0; }
int cublasLtMatmulDescCreate(Operation** d, int compute, int scale) {
  return *d = new Operation{compute, scale, {0, 0}}, compute != 68;
}
int cublasLtMatmulDescSetAttribute(Operation* d, int attribute, const void* value, size_t size) {
  if ((attribute != 3 && attribute != 4) || size != 4) return 7;
  return memcpy(&d->transposed[attribute - 3], value, 4), 0;
}
int cublasLtMatrixLayoutCreate(Layout** l, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  return *l = new Layout{type, rows, columns, ld}, 0;
}
int cublasLtMatmulPreferenceCreate(Preference** p) { return *p = new Preference{}, 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value,
                                         size_t size) {
  if (attribute == 1 && size == 8) return memcpy(&p->workspace, value, 8), 0;
  if (attribute < 5 || attribute > 8 || size != 4) return 7;
  return memcpy(&p->alignments[attribute - 5], value, 4), 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, Operation*, Layout*, Layout*, Layout*, Layout*,
                                   Preference* p, int asked, Result* results, int* count) {
  *count = asked < 4 ? asked : 4;
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].algorithm.data[7] = i;
    results[i].workspace = p->alignments[3];
    results[i].state = i == 1 ? 15 : 0;  // CUBLAS_STATUS_NOT_SUPPORTED
  }
  return 0;
}
int cublasLtMatmul(void*, Operation* d, const float* alpha, const float* a, Layout* la,
                   const float* b, Layout* lb, const float* beta, const float*, Layout*, float* y,
                   Layout* ly, const Algorithm* algorithm, void*, size_t workspace, void*) {
  if (algorithm->data[7] == 3) return 15;  // listed, but it does not run
  if (d->transposed[1] || *alpha != 1 || *beta != 0 || workspace != 64 << 20) return 7;
  const uint64_t k = lb->rows;
  for (uint64_t column = 0; column < ly->columns; ++column)
    for (uint64_t row = 0; row < ly->rows; ++row) {
      float sum = 0;
      for (uint64_t i = 0; i < k; ++i) {
        const uint64_t at = d->transposed[0] ? i + row * la->ld : row + i * la->ld;
        sum += a[at] * b[i + column * lb->ld];
      }
      y[row + column * ly->ld] = sum;
    }
  return 0;
}
}
"""


class Tensor:
    """An array of numpy's that says where it lies."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = np.ascontiguousarray(array), array.dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data


TORCH = SimpleNamespace(
    empty=lambda shape, dtype, device: Tensor(np.zeros(shape, dtype)),
    cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0)),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory: Path = tmp_path_factory.mktemp("cublaslt")
    (directory / "stub.cc").write_text(LIBRARY)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-o", str(directory / "stub.so"), str(directory / "stub.cc")],
        check=True,
    )
    return ctypes.CDLL(str(directory / "stub.so"))


@pytest.fixture(autouse=True)
def _stub(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cublaslt._handle.cache_clear()
    monkeypatch.setattr(cublaslt, "_library", lambda: library)
    monkeypatch.setattr(cublaslt, "_workspace", lambda: Tensor(np.zeros(1)))
    yield
    cublaslt._handle.cache_clear()


@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_is_that_of_rows_and_refused_algorithms_are_left_out(transposed: bool) -> None:
    product = Product(TORCH, Shape(3, 5, 7, DType.F32, transposed))
    assert len(product.algorithms) == 3  # one of the four listed is not supported
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 7), np.float32), rng.standard_normal((7, 5), np.float32)
    stored = Tensor(weight.T if transposed else weight)
    assert np.allclose(product.run(Tensor(x), stored, 0).array, x @ weight, atol=1e-5)
    with pytest.raises(RuntimeError, match="cublasLtMatmul failed with cublasStatus_t 15"):
        product.run(Tensor(x), stored, 2)


def test_alignments_follow_the_sets_sizes() -> None:
    assert Shape(1280, 3072, 768, DType.F16, True).alignment == 256
    assert Shape(2464, 8, 4, DType.F16, True).alignment == 64
    assert Shape(3, 5, 7, DType.F16, True).alignment == 2


def test_the_fastest_that_runs_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Operation:
        def __init__(self, algorithm: int) -> None:
            self.algorithm = algorithm

        def measure(self):  # type: ignore[no-untyped-def]
            if self.algorithm == 2:
                raise RuntimeError("cublasLtMatmul failed with cublasStatus_t 15")
            return lambda count: [{0: 5.0, 1: 3.0}[self.algorithm]] * count

    monkeypatch.setattr(peers, "pytorch", lambda: TORCH)
    monkeypatch.setattr(peers.Listed, "operation", lambda self: Operation(self.algorithm))
    peers.fastest_listed.cache_clear()
    name, _ = peers.listed_product(GemmProblem(64, 64, 64, DType.F16, DType.F16, ()), True)
    assert name == "cublasLt 2 of 2, weight [N, K]"
    peers.fastest_listed.cache_clear()
