"""Models, lock files and options that name extensions, or that hold what only an extension could
have added; none of these extensions is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, helper

from onnxbolt import library, names
from onnxbolt.families.row import SLOTS
from onnxbolt.measurements.keys import plain
from tests.extending.activation import STEEP_SWISH
from tests.extending.architectures import BLACKWELL
from tests.extending.gemm_fma import GEMM_FMA
from tests.extending.softmax import ROW_SOFTMAX, SCALED_SOFTMAX
from tests.extending.strategy import BestFamily
from tests.hostile.archives import small
from tests.hostile.locks import GEMM, LOCK
from tests.hostile.models import FULL, ROWS, Make, sound, with_configs, with_ops
from tests.hostile.trial import complaint
from tests.hostile.words import hostile_strings

_ARCH, _FAMILY = SLOTS.index("arch"), SLOTS.index("family")


def trials(directory: Path, marker: Path) -> Iterator[tuple[str, str]]:
    """Each input's name with its complaint (tests/hostile/trial.py), "" where it is refused by one
    error. Files are made in `directory`; what is run would make `marker`."""
    words = hostile_strings(marker)
    evil, lock = directory / "evil.onnx", directory / "evil.lock"
    for i, (name, make) in enumerate(hostile_models(words)):
        onnx.save(make(), evil)
        yield name, complaint(["build" if i % 2 else "inspect", evil], directory, marker)
    onnx.save(small([helper.make_node("Relu", ["x"], ["y"])]), evil)
    optimize = ["optimize", evil, directory / "out.onnx", "--dry-run"]
    for name, text in hostile_locks(words):
        lock.write_text(text)
        yield name, complaint([*optimize, "--lock", lock], directory, marker)
    for name, options in hostile_options(words):
        yield name, complaint([*optimize, *options], directory, marker)


def with_extensions(text: str, make: Make = sound) -> ModelProto:
    """The model of `make` with a metadata entry onnxbolt.extensions."""
    model = make()
    helper.set_model_props(model, library.metadata(model) | {names.EXTENSIONS: text})
    return model


def hostile_models(words: list[str]) -> Iterator[tuple[str, Make]]:
    """Each as a function that makes it, with a name that says what is wrong with it."""
    words = [word for word in words if "\ud800" not in word]  # protobuf holds none
    for i, word in enumerate(words):
        yield f"extension {i}", partial(with_extensions, word)
        yield f"extension {i} behind another", partial(with_extensions, f"mine,{word}")
    for name, text in {
        "not installed": "mine",
        "none": ",",
        "a list": '["mine"]',
        "a number": "1",
        "twice": "mine,mine",
        "many": "mine," * 100_000 + "mine",
        "many different": ",".join(f"mine{i}" for i in range(100_000)),
    }.items():
        yield f"extensions: {name}", partial(with_extensions, text)
    for name, make in _added_by_extensions():
        yield name, make
        yield f"{name}, named", partial(with_extensions, "mine", make)


def _added_by_extensions() -> Iterator[tuple[str, Make]]:
    """Models that hold a kind, a step, an architecture or a family that no package has."""
    yield "kind", partial(with_ops, [{**FULL, "kind": SCALED_SOFTMAX.name}])
    yield "step", partial(with_ops, [{**FULL, "chain": [STEEP_SWISH.name]}])
    row = ROWS[0].row()
    for column, numbers in (
        (_ARCH, (BLACKWELL.number, 1090)),
        (_FAMILY, (GEMM_FMA.number, ROW_SOFTMAX.number, 1999, 2**31)),
    ):
        for number in numbers:
            changed = [*row[:column], number, *row[column + 1 :]]
            yield f"{SLOTS[column]} {number}", partial(with_configs, changed)


def hostile_locks(words: list[str]) -> Iterator[tuple[str, str]]:
    """Texts of lock files that name extensions, or what only an extension could have added."""
    numbers: tuple[Any, ...] = (None, True, 1, 1.5, {}, {"mine": 1}, [[]], [None], [1], [["mine"]])
    given = [*words, *numbers, *([word] for word in words), *(["mine", word] for word in words)]
    given += [["mine"], ["mine"] * 100_000, [f"mine{i}" for i in range(100_000)]]
    for i, value in enumerate(given):
        yield f"extensions {i}", _lock(extensions=value)
    yield "architecture", _lock(archs=[BLACKWELL.name])
    choice = next(
        row for row in json.loads(LOCK.text())["choices"] if row["problem"] == plain(GEMM)
    )
    row = choice["config"]
    changes: dict[str, dict[str, object]] = {
        "problem": {"kind": "ScaledSoftmaxProblem"},
        "step": {"problem": {**choice["problem"], "chain": [STEEP_SWISH.name]}},
        "target": {"arch": BLACKWELL.number},
        "row's architecture": {"config": [*row[:_ARCH], BLACKWELL.number, *row[_ARCH + 1 :]]},
        "row's family": {"config": [*row[:_FAMILY], GEMM_FMA.number, *row[_FAMILY + 1 :]]},
    }
    for name, change in changes.items():
        yield f"choice: {name}", _lock(choices=[{**choice, **change}])


def hostile_options(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Options of `optimize` that name strategies and architectures of extensions."""
    for i, word in enumerate([*words, BestFamily.name, BLACKWELL.name, "x" * 1_000_000]):
        if word:  # none is the tuner's own strategy
            yield f"strategy {i}", ["--tune", "--strategy", word]
        yield f"architecture {i}", ["--arch", word]


def _lock(**changes: object) -> str:
    return json.dumps({**json.loads(LOCK.text()), **changes})
