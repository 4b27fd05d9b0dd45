"""Parts that the benchmarks of whole models share: the stream, and what precedes it."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import whole_models
from onnxbolt.errors import BuildError


def chosen(*flags: str) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser()
    whole_models.add_options(parser, "any")
    whole_models.add_tuning_options(parser)
    return parser.parse_args(flags), parser


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The architectures that the profiler was compiled for, on a machine with a GPU."""
    found: list[int] = []
    monkeypatch.setattr(whole_models, "Stream", object)
    monkeypatch.setattr(whole_models, "local_arch", lambda: "sm_90a")
    monkeypatch.setattr(whole_models, "profiler_library", found.append)
    return found


def test_the_profiler_takes_no_part_of_a_models_budget(compiled: list[int]) -> None:
    assert whole_models.stream_for(*chosen("--provider", "cpu", "--tune")) is None
    assert whole_models.stream_for(*chosen()) is not None
    assert not compiled
    assert whole_models.stream_for(*chosen("--tune")) is not None
    assert compiled == [90]


def test_a_profiler_that_does_not_compile_is_one_error(
    compiled: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: int) -> None:
        raise BuildError("nvcc: out of memory")

    monkeypatch.setattr(whole_models, "profiler_library", refused)
    with pytest.raises(SystemExit, match="1"):
        whole_models.stream_for(*chosen("--tune"))
    assert "error: nvcc: out of memory" in capsys.readouterr().err
