"""PyTorch's kernels as peers: cuBLAS's products, cuDNN's convolutions and elementwise kernels,
timed as the tuner's profiler times ours.

Launches are recorded in a CUDA graph, each sample is one run of the graph that was enqueued during
another one, operands and results are rotated past the L2 cache, values are random. Without PyTorch
`pytorch()` is None, and rows have no peer.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.cublaslt import Product, Shape
from onnxbolt.dtypes import DType
from onnxbolt.problems import ConvProblem, GemmProblem
from onnxbolt.tune.sessions import Measure

LibraryProblem = GemmProblem | ConvProblem  # cuBLAS or cuDNN has kernels for these
_LEAST_US = 1000.0  # a graph takes so long on the device: its start and end take a few microseconds
_MAX_LAUNCHES, _MAX_SETS = 2048, 256  # the same as in custom_ops/profiler
_SHORT_LOOK = 3
LISTED = "cublasLt"  # prefix of the forms that come from the library's list
_COPIED = 1 << 29  # bytes, far more than any cache holds
# in torch.nn.functional
ACTIVATIONS = {"Relu": "relu", "GeluErf": "gelu", "HardSwish": "hardswish", "Softplus": "softplus"}


@functools.cache
def pytorch() -> Any:
    """The module with a CUDA device, set to search for cuDNN's fastest algorithm; None, with one
    message, if it is missing."""
    try:
        import torch
    except ImportError as error:
        print(f"no peer to compare with, since PyTorch cannot be imported: {error}", flush=True)
        return None
    torch.backends.cudnn.benchmark = True
    return torch


def release() -> None:
    """Free the device memory that PyTorch caches, because the tuner's process needs room for its
    operands."""
    if torch := pytorch():
        torch.cuda.empty_cache()


def library(name: str, forms: Iterable[str] = (LISTED,)) -> str:
    """How a row calls the peer whose `forms` were timed: 'cuBLAS (torch 2.11.0)', and a word
    more where none was of cublasLt's list."""
    torch, first = (
        pytorch(),
        name == "cuBLAS" and not any(form.startswith(LISTED) for form in forms),
    )
    name = f"{name}'s first algorithm" if first else name
    return f"{name} (torch {torch.__version__.partition('+')[0]})" if torch else name


@dataclass(frozen=True)
class Operation:
    """A function that PyTorch runs on operand set i, and the number of sets; results are kept until
    all sets have theirs."""

    run: Callable[[int], Any]
    sets: int

    def then(self, function: Callable[[int, Any], Any]) -> Operation:
        """This operation followed by `function` of the set and the result."""
        return Operation(lambda i: function(i, self.run(i)), self.sets)

    def measure(self) -> Measure:
        """Records the graph; the result gives microseconds of one run."""
        return _Graph(self).measure


def matmul(problem: GemmProblem, transposed: bool) -> Operation:
    """The bare product, the weight stored [N, K] where `transposed`, else [K, N]."""
    torch = pytorch()
    x, weight, sets = _operands(Shape(problem.m, problem.n, problem.k, problem.dtype, transposed))
    weight = weight.transpose(1, 2) if transposed else weight
    return Operation(lambda i: torch.matmul(x[i], weight[i]), sets)


def listed_product(problem: GemmProblem, transposed: bool) -> tuple[str, Operation]:
    """The bare product by the fastest algorithm of cublasLt's list for the weight's layout, and
    which one that is."""
    product = fastest_listed(Shape(problem.m, problem.n, problem.k, problem.dtype, transposed))
    name = (
        f"{LISTED} {product.algorithm + 1} of {product.ran}, weight"
        f" {'[N, K]' if transposed else '[K, N]'}"
    )
    return name, product.operation()


@dataclass(frozen=True)
class Listed:
    """One algorithm of cublasLt's list for a product; `ran` is how many of the list ran."""

    product: Product
    algorithm: int
    ran: int = 0

    def __call__(self, x: Any, weight: Any) -> Any:
        return self.product.run(x, weight, self.algorithm)

    def operation(self) -> Operation:
        """On operands of its own."""
        x, weight, sets = _operands(self.product.shape)
        return Operation(lambda i: self(x[i], weight[i]), sets)


@functools.cache
def fastest_listed(shape: Shape) -> Listed:
    """The fastest algorithm of cublasLt's list, each timed. Raises RuntimeError if none runs."""
    product = Product(pytorch(), shape)
    times = {}
    for algorithm in range(len(product.algorithms)):
        with contextlib.suppress(RuntimeError):  # listed, but refused for these operands
            times[algorithm] = statistics.median(
                Listed(product, algorithm).operation().measure()(_SHORT_LOOK)
            )
    if not times:
        raise RuntimeError(
            f"none of cublasLt's {len(product.algorithms)} algorithms for {shape} ran"
        )
    return Listed(product, min(times, key=lambda algorithm: times[algorithm]), len(times))


def _operands(shape: Shape) -> tuple[Any, Any, int]:
    """x[sets, M, K], the weight in its layout, and the number of sets."""
    m, n, k, dtype = shape.m, shape.n, shape.k, shape.dtype
    sets = operand_sets(dtype.bytes * (m * k + k * n + m * n))
    return (
        normal((sets, m, k), dtype),
        normal((sets, *((n, k) if shape.transposed else (k, n))), dtype, k**-0.5),
        sets,
    )


def convolution(problem: ConvProblem, channels: int | None = None, last: bool = True) -> Operation:
    """The bare convolution in channels_last, or contiguous; `channels` replaces the problem's
    input channels."""
    torch, c = pytorch(), channels or problem.c
    size = problem.n * (problem.h * problem.w * c + problem.p * problem.q * problem.k)
    sets = operand_sets(problem.dtype.bytes * size)
    top, left, bottom, right = problem.pads
    if (top, left) != (bottom, right):
        raise RuntimeError(f"PyTorch's convolution has no padding {problem.pads}")
    x = normal((sets, problem.n, problem.h, problem.w, c), problem.dtype).movedim(4, 2)
    weight = normal(
        (sets, problem.k, problem.r, problem.s, c),
        problem.dtype,
        (problem.r * problem.s * c) ** -0.5,
    ).movedim(4, 2)
    if not last:
        x, weight = x.contiguous(), weight.contiguous()

    def run(i: int) -> Any:
        return torch.nn.functional.conv2d(
            x[i], weight[i], None, problem.strides, (top, left), problem.dilations
        )

    return Operation(run, sets)


def bare(problem: LibraryProblem) -> dict[str, Operation]:
    """The library's product or convolution without epilogue, in each form that it may prefer.

    The weight of a product in either layout, by cuBLAS's first algorithm and by the fastest that it
    lists; the few channels of a stem in either layout, or padded.
    """
    if isinstance(problem, GemmProblem):
        first = {
            "first algorithm, weight [N, K]": matmul(problem, True),
            "first algorithm, weight [K, N]": matmul(problem, False),
        }
        return first | where_listed(
            lambda: dict(listed_product(problem, transposed) for transposed in (True, False))
        )
    if problem.c < 8:
        forms = {f"{c} channels, channels last": convolution(problem, c) for c in (3, 4, 8)}
        return forms | {"channels first": convolution(problem, problem.c, last=False)}
    return {"channels last": convolution(problem)}


def where_listed(make: Callable[[], dict[str, Operation]]) -> dict[str, Operation]:
    """The forms from cublasLt's list; if the library's list is not available, none and a message
    that says why."""
    try:
        return make()
    except (RuntimeError, OSError, AttributeError) as error:
        print(f"cuBLAS counts with its first algorithm alone: {error}", flush=True)
        return {}


def quickest(operations: Mapping[str, Operation]) -> Operation:
    """The fastest of a few forms by a short measurement."""
    times = {
        form: statistics.median(operation.measure()(_SHORT_LOOK))
        for form, operation in operations.items()
    }
    return operations[min(times, key=lambda form: times[form])]


def unfused(problem: LibraryProblem, operation: Operation) -> Operation:
    """`operation` and the problem's epilogue as PyTorch runs it: a kernel for each step."""
    for step in problem.chain:
        operation = operation.then(_kernel(step, problem, operation.sets))
    return operation


def _kernel(step: str, problem: LibraryProblem, sets: int) -> Callable[[int, Any], Any]:
    """The kernel of one step behind the problem's product."""
    if step == "Bias":
        bias = normal(
            (problem.n,) if isinstance(problem, GemmProblem) else (problem.k, 1, 1), problem.dtype
        )
        return lambda _, y: y.add_(bias)
    if step == "Add":
        residual = _results_like(problem, sets)
        return lambda i, y: y.add_(residual[i])
    return lambda _, y: activation(step, y)


def activation(step: str, y: Any) -> Any:
    """One elementwise kernel that computes the step."""
    torch = pytorch()
    return getattr(torch.nn.functional, ACTIVATIONS[step])(y)


def channel_padding(problem: ConvProblem, channels: int) -> Operation:
    """The activations copied into rows of `channels`, whose rest is zero: one kernel."""
    torch, pixels = pytorch(), (problem.n, problem.h, problem.w)
    sets = operand_sets(problem.dtype.bytes * math.prod(pixels) * (problem.c + channels))
    x = normal((sets, *pixels, problem.c), problem.dtype)
    padded = torch.zeros((sets, *pixels, channels), dtype=x.dtype, device="cuda")
    return Operation(lambda i: padded[i, ..., : problem.c].copy_(x[i]), sets)


def copy_rate() -> Measure:
    """Measures one copy of _COPIED bytes, which `bytes_per_us` turns into a rate.

    It is an elementwise kernel, since that reaches more than cudaMemcpyAsync between two places of
    one device.
    """
    torch = pytorch()
    source = torch.zeros(_COPIED // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return Operation(lambda _: torch.abs(source, out=target), 1).measure()


def bytes_per_us(copy_us: float) -> float:
    """Bytes read and written in a microsecond of such a copy."""
    return 2 * _COPIED / copy_us


class _Graph:
    """An operation on every set, so many times that the graph is long enough to time, recorded in a
    CUDA graph."""

    def __init__(self, operation: Operation) -> None:
        self._torch, self._operation = pytorch(), operation
        self._results: list[Any] = []
        self._stream = self._torch.cuda.Stream()
        self._stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(self._stream):
            self._run()  # compiles, and chooses algorithms
        passes = 1
        self._record(passes)
        # how fast the host launches each operation by itself says nothing about the graph
        while (
            needed := graph_passes(passes, statistics.median(self._times()), operation.sets)
        ) > passes:
            passes = needed
            self._record(passes)

    def _record(self, passes: int) -> None:
        self._results = []
        self._graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(self._graph, stream=self._stream):
            for _ in range(passes):
                self._run()
        self._launches = passes * self._operation.sets

    def _run(self) -> None:
        self._results.clear()  # their memory serves the next pass
        self._results += map(self._operation.run, range(self._operation.sets))

    def measure(self, count: int) -> list[float]:
        """Microseconds of one launch, `count` times."""
        return [us / self._launches for us in self._times(count)]

    def _times(self, count: int = _SHORT_LOOK) -> list[float]:
        """Microseconds of `count` consecutive runs of the graph. The host enqueues each of them
        during the one before, the first during one that is not timed."""
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()
            for event in events[:-1]:
                event.record(self._stream)
                self._graph.replay()
            events[-1].record(self._stream)
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) * 1e3 for start, end in itertools.pairwise(events)]


def rotated_sets(size: int, l2_size: int) -> int:
    """The number of sets of operands, `size` bytes each, that fill twice the L2 cache."""
    return min(max(math.ceil(2 * l2_size / size), 1), _MAX_SETS)


def graph_passes(passes: int, us: float, sets: int) -> int:
    """The number of passes over all sets that the next graph has, where one of `passes` took `us`;
    `passes` if that is long enough, or as many launches as a graph may have."""
    most = max(1, _MAX_LAUNCHES // sets)
    if us >= _LEAST_US or passes >= most:
        return passes
    return min(most, max(2 * passes, math.ceil(passes * _LEAST_US / us)))


def operand_sets(size: int) -> int:
    torch = pytorch()
    return rotated_sets(size, torch.cuda.get_device_properties(0).L2_cache_size)


def normal(shape: tuple[int, ...], dtype: DType, deviation: float = 1.0) -> Any:
    torch = pytorch()
    element = {DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32}[
        dtype
    ]
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=element, device="cuda").mul_(deviation)


def _results_like(problem: LibraryProblem, sets: int) -> Any:
    """Random tensors of the result's shape, [M, N] or NCHW in channels_last."""
    if isinstance(problem, GemmProblem):
        return normal((sets, problem.m, problem.n), problem.dtype)
    return normal((sets, problem.n, problem.p, problem.q, problem.k), problem.dtype).movedim(4, 2)
