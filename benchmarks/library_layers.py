"""Several layers as cuBLAS and cuDNN run them one after the other, through PyTorch: the peers of
one kernel for all layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.cublaslt import Shape
from benchmarks.peers import (
    LISTED,
    Operation,
    convolution,
    fastest_listed,
    normal,
    operand_sets,
    pytorch,
    where_listed,
)
from onnxbolt.problems import ConvProblem, GemmProblem


def layers(problem: GemmProblem | ConvProblem, epilogue: bool) -> dict[str, Operation]:
    """Layers one after the other, in each form that the library may prefer: its kernels alone,
    or with its bias and a kernel of PyTorch's for each ReLU."""
    if isinstance(problem, GemmProblem):
        layouts = {"weights [N, K]": True, "weights [K, N]": False}
        found = {
            name: _products(problem, epilogue, transposed) for name, transposed in layouts.items()
        }
        if epilogue:
            return found
        return found | where_listed(
            lambda: {
                f"{LISTED}, {name}": _listed(problem, transposed)
                for name, transposed in layouts.items()
            }
        )
    if problem.c >= 8:
        return {"channels last": _convolutions(problem, epilogue, problem.c)}
    few = {
        f"{c} channels, channels last": _convolutions(problem, epilogue, c)
        for c in (problem.c, 4, 8)
    }
    return few | {"channels first": _convolutions(problem, epilogue, problem.c, last=False)}


def _products(problem: GemmProblem, epilogue: bool, transposed: bool) -> Operation:
    torch, parts = pytorch(), problem.layers
    sets = operand_sets(
        problem.dtype.bytes
        * (problem.m * (problem.k + problem.n) + sum(layer.k * layer.n for layer in parts))
    )
    x = normal((sets, problem.m, problem.k), problem.dtype)
    weights = [
        normal((sets, *((p.n, p.k) if transposed else (p.k, p.n))), p.dtype, p.k**-0.5)
        for p in parts
    ]
    weights = [weight.transpose(1, 2) for weight in weights] if transposed else weights
    biases = [normal((layer.n,), layer.dtype) for layer in parts]

    def run(i: int) -> Any:
        y = x[i]
        for weight, bias in zip(weights, biases, strict=True):
            y = torch.addmm(bias, y, weight[i]).relu_() if epilogue else torch.mm(y, weight[i])
        return y

    return Operation(run, sets)


def _listed(problem: GemmProblem, transposed: bool) -> Operation:
    """Bare products, each by the fastest algorithm of cublasLt's list."""
    parts = problem.layers
    sets = operand_sets(
        problem.dtype.bytes
        * (problem.m * (problem.k + problem.n) + sum(layer.k * layer.n for layer in parts))
    )
    x = normal((sets, problem.m, problem.k), problem.dtype)
    weights = [
        normal((sets, *((p.n, p.k) if transposed else (p.k, p.n))), p.dtype, p.k**-0.5)
        for p in parts
    ]
    products = [fastest_listed(Shape(p.m, p.n, p.k, p.dtype, transposed)) for p in parts]

    def run(i: int) -> Any:
        y = x[i]
        for product, weight in zip(products, weights, strict=True):
            y = product(y, weight[i])
        return y

    return Operation(run, sets)


def _convolutions(
    problem: ConvProblem, epilogue: bool, channels: int, last: bool = True
) -> Operation:
    torch, (first, *others) = pytorch(), problem.layers
    operation = convolution(dataclasses.replace(first, chain=()), channels, last)
    weights = [
        normal((operation.sets, layer.k, 1, 1, layer.c), layer.dtype, layer.c**-0.5).movedim(4, 2)
        for layer in others
    ]
    biases = [normal((layer.k, 1, 1), layer.dtype) for layer in problem.layers]

    def run(i: int) -> Any:
        y = operation.run(i)
        y = y.add_(biases[0]).relu_() if epilogue else y
        for weight, bias in zip(weights, biases[1:], strict=True):
            y = torch.nn.functional.conv2d(y, weight[i])
            y = y.add_(bias).relu_() if epilogue else y
        return y

    return Operation(run, operation.sets)
