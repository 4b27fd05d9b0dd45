"""Races of models as sessions: ONNX Runtime's side of a region against fused ones, in this process
or, by the tuner's cluster, in another."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import load_model_from_string

from onnxbolt.errors import OnnxboltError
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import (
    Arrays,
    Found,
    Name,
    Sample,
    Source,
    cudnn_version,
    interleave,
    only,
    search,
)
from onnxbolt.verify.feeds import random_feeds
from onnxbolt.verify.session import RUNTIME_ERRORS

_SEARCH_RUNS, _ROUNDS, _RUNS = 10, 10, 10


class RaceError(OnnxboltError):
    """The models do not run."""


@dataclass(frozen=True)
class Lap:
    """The fastest setting of one model in a race, in words, and its times."""

    setting: str
    sample: Sample


@dataclass(frozen=True)
class Race:
    """Models of the same inputs: the first two at their best settings, parts with that of the
    first. After `deadline` (time.monotonic) no further part begins."""

    models: Sequence[bytes]
    library: Path | None
    deadline: float = math.inf


class Racing(ABC):
    """A place for races. `submit` begins one, `done` waits for the next that is over: its number
    with a lap for each model, None where a part does not run, or RaceError if the others do not."""

    @property
    def cudnn(self) -> int:
        """The version of cuDNN there, as `sessions.cudnn_version` says it."""
        return cudnn_version()

    @property
    def slots(self) -> int:
        """Races that may be under way before the next one is prepared, at least 1."""
        return 1

    @abstractmethod
    def submit(self, number: int, race: Race) -> None: ...

    @abstractmethod
    def done(self) -> tuple[int, list[Lap | None] | RaceError]: ...


class Here(Racing):
    """This process. `done` raises CudaError if the device is lost."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self._begun: list[tuple[int, Race]] = []

    def submit(self, number: int, race: Race) -> None:
        self._begun.append((number, race))

    def done(self) -> tuple[int, list[Lap | None] | RaceError]:
        number, race = self._begun.pop(0)
        try:
            return number, run(race, self._stream)
        except RaceError as error:
            return number, error


def run(race: Race, stream: Stream | None) -> list[Lap | None]:
    """The laps of a race on the stream's device, or on the CPU. Raises RaceError and CudaError."""
    first, second, *parts = (
        Source("nodes" if number == 0 else "fused", model, race.library if number else None)
        for number, model in enumerate(race.models)
    )
    try:
        feeds = random_feeds(load_model_from_string(race.models[0]))
        found = best_of({0: first, 1: second}, feeds, stream)
        for number, part in enumerate(parts, 2):
            # with the first one's best setting, since it leaves the rest to ONNX Runtime, too
            if time.monotonic() <= race.deadline:
                with contextlib.suppress(*RUNTIME_ERRORS):
                    found[number] = only(part, found[0].setting, feeds, stream)
        samples = interleave(
            {number: best.session.measure for number, best in found.items()}, _ROUNDS, _RUNS
        )
    except RUNTIME_ERRORS as error:
        raise RaceError((str(error).splitlines() or [type(error).__name__])[0][:200]) from error
    return [
        Lap(str(found[number].setting), samples[number]) if number in found else None
        for number in range(len(race.models))
    ]


def best_of(
    sources: Mapping[Name, Source], feeds: Arrays, stream: Stream | None
) -> dict[Name, Found]:
    """The fastest setting of each side; with CUDA graphs if both sides can be captured, else
    without. Raises one of RUNTIME_ERRORS."""
    try:
        return {
            side: search([source], feeds, stream, _SEARCH_RUNS, (True,))
            for side, source in sources.items()
        }
    except RUNTIME_ERRORS:
        return {
            side: search([source], feeds, stream, _SEARCH_RUNS, (False,))
            for side, source in sources.items()
        }
