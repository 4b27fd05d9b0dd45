"""Benchmarks without a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from benchmarks import kernels
from onnxbolt.codegen.render import Instance
from onnxbolt.tune.library import Result


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Instance]:
    """The kernels that a benchmark asks for; none is compiled."""
    found = list[Instance]()

    def build(given: Sequence[Instance]) -> Iterator[Result]:
        found.extend(given)
        return iter(())

    monkeypatch.setattr(kernels, "build", build)
    return found
