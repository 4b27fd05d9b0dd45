"""Inputs of the norms of benchmarks/norms.py: rows, tokens or embeddings, as random tensors, as
PyTorch adds them up, and as fields of a kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from onnxbolt.problems import EmbeddingNormProblem, NormProblem, TokenNormProblem
from tests.gpu.device import Embedding, Epilogue, Norm

Total = Callable[..., Any]  # takes the tensors of one set
# rows of the first, second and third table: words, positions and types of RoBERTa
_TABLES = (50265, 514, 2)


@dataclass(frozen=True)
class Rows:
    """x [M, C], and a residual [M, C] where the chain has one."""

    problem: NormProblem

    def draw(self, sets: int) -> list[tuple[Any, ...]]:
        """Random tensors: those that the function `total` takes, for each set."""
        shape = (sets, self.problem.m, self.problem.c)
        x = peers.normal(shape, self.problem.dtype)
        if "Add" not in self.problem.chain:
            return [(x[i],) for i in range(sets)]
        residual = peers.normal(shape, self.problem.dtype, 0.7).flip(1)  # else a multiple of x
        return [(x[i], residual[i]) for i in range(sets)]

    def total(self) -> Total:
        """The sum that is normalized, by PyTorch's functions: torch.compile can read it."""

        def added(x: Any, *residuals: Any) -> Any:
            for residual in residuals:
                x = x + residual
            return x

        return added

    def point(self, arguments: Norm, tensors: Sequence[Any]) -> None:
        """Let a kernel's arguments have the tensors of one set."""
        x, *residuals = tensors
        arguments.x, arguments.x_pitch = x.data_ptr(), self.problem.c
        for residual in residuals:
            _add(arguments.epilogue, residual, self.problem.c)


@dataclass(frozen=True)
class Tokens(Rows):
    """x [B, S - prefix, C], class tokens [1, prefix, C], positions [S, C], and the rows that both
    become when a model is built, which PyTorch does not read."""

    problem: TokenNormProblem

    def draw(self, sets: int) -> list[tuple[Any, ...]]:
        """As Rows."""
        tokens, prefix = self.problem.tokens, self.problem.prefix
        shape = (sets, self.problem.m // tokens, tokens - prefix, self.problem.c)
        x = peers.normal(shape, self.problem.dtype)
        head = peers.normal((1, prefix, self.problem.c), self.problem.dtype)
        positions = peers.normal((tokens, self.problem.c), self.problem.dtype, 0.7)
        rows = positions.clone()
        rows[:prefix] += head[0]
        return [(x[i], head, positions, rows) for i in range(sets)]

    def total(self) -> Total:
        """As Rows."""
        torch = peers.pytorch()

        def joined(x: Any, head: Any, positions: Any, _: Any) -> Any:
            return torch.cat((head.expand(x.shape[0], -1, -1), x), 1) + positions

        return joined

    def point(self, arguments: Norm, tensors: Sequence[Any]) -> None:
        """As Rows."""
        x, _, _, rows = tensors
        arguments.x, arguments.x_pitch = x.data_ptr(), self.problem.c
        arguments.tokens, arguments.prefix = self.problem.tokens, self.problem.prefix
        _add(arguments.epilogue, rows, self.problem.c)


@dataclass(frozen=True)
class Embeddings(Rows):
    """Indices [B, S] and a table for each embedding, then positions [S, C] where the chain has
    them. All sets share the tables."""

    problem: EmbeddingNormProblem

    def draw(self, sets: int) -> list[tuple[Any, ...]]:
        """As Rows."""
        torch, problem = peers.pytorch(), self.problem
        counts = _TABLES[: problem.tables]
        tables = [peers.normal((count, problem.c), problem.dtype) for count in counts]
        size = (sets, problem.m // problem.tokens, problem.tokens)
        generator = torch.Generator("cuda").manual_seed(0)
        indices = [
            torch.randint(count, size, generator=generator, device="cuda") for count in counts
        ]
        rows = []
        if "Add" in problem.chain:
            rows.append(peers.normal((problem.tokens, problem.c), problem.dtype, 0.7))
        pairs = list(zip(indices, tables, strict=True))
        return [
            (*(tensor for ids, table in pairs for tensor in (ids[i], table)), *rows)
            for i in range(sets)
        ]

    def total(self) -> Total:
        """As Rows."""
        embedding, tables = peers.pytorch().nn.functional.embedding, self.problem.tables

        def gathered(*tensors: Any) -> Any:
            total = embedding(tensors[0], tensors[1])
            for i in range(1, tables):
                total = total + embedding(tensors[2 * i], tensors[2 * i + 1])
            for rows in tensors[2 * tables :]:
                total = total + rows
            return total

        return gathered

    def point(self, arguments: Norm, tensors: Sequence[Any]) -> None:
        """As Rows."""
        tokens, last = self.problem.tokens, 2 * self.problem.tables
        arguments.tokens, arguments.tables = tokens, self.problem.tables
        for i in range(self.problem.tables):
            indices, table = tensors[2 * i : 2 * i + 2]
            places = table.data_ptr(), indices.data_ptr()
            arguments.embeddings[i] = Embedding(*places, table.shape[0], tokens, 1, True)
        for rows in tensors[last:]:
            _add(arguments.epilogue, rows, self.problem.c)


def inputs_of(problem: NormProblem) -> Rows:
    """The inputs of a problem of any kind."""
    if isinstance(problem, TokenNormProblem):
        return Tokens(problem)
    return Embeddings(problem) if isinstance(problem, EmbeddingNormProblem) else Rows(problem)


def _add(epilogue: Epilogue, tensor: Any, columns: int) -> None:
    epilogue.tensors[0], epilogue.tensor_pitch[0] = tensor.data_ptr(), columns
