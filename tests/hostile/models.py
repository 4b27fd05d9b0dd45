"""Optimized models with one thing in them that onnxbolt would not have written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from onnx import AttributeProto, ModelProto, helper

from onnxbolt import checks, library
from onnxbolt.codegen import render
from onnxbolt.families import FAMILIES, named, of_kind
from onnxbolt.opspec import OpSpec, ops_to_json
from tests import library_fixtures as fx
from tests.hostile.words import hostile_strings

ROWS = [fx.config(named("gemm_2x"), max_m=64), fx.config(named("gemm_2x"), 86, min_m=65)]
# a row with every field
FULL = {
    **json.loads(ops_to_json([fx.GEMM.spec]))[0],
    "planes": "f32",
    "into": True,
    "to_nchw": True,
}
Make = Callable[[], ModelProto]
_ANYTHING = re.compile("(?s).*")


def sound() -> ModelProto:
    """A model with one fused node, as `optimize` writes it."""
    model = fx.fused_model(fx.GEMM, ["M", 8], (16, 8), [[16]], rows=ROWS)
    manifest = library.make_manifest([fx.GEMM.spec], [fx.GEMM.spec.instance(row) for row in ROWS])
    helper.set_model_props(model, library.metadata_of(manifest, "keep", (80, 86)))
    return model


def with_op_type(name: str) -> ModelProto:
    """The model with its op type renamed everywhere, and the digest that belongs to that:
    onnxbolt without its checks wrote it."""
    model = sound()
    model.graph.node[0].op_type = model.functions[0].name = name
    with (
        mock.patch.object(checks, "NAME", _ANYTHING),
        mock.patch.object(render, "_RENDERED", _ANYTHING),
    ):
        spec = OpSpec(
            name, fx.GEMM.spec.kind, fx.GEMM.spec.element, fx.GEMM.spec.output, fx.GEMM.spec.chain
        )
        manifest = library.make_manifest([spec], [spec.instance(row) for row in ROWS])
        helper.set_model_props(model, library.metadata_of(manifest, "keep", (80, 86)))
    return model


def with_ops(rows: object) -> ModelProto:
    """The model with another metadata entry onnxbolt.ops."""
    model = sound()
    helper.set_model_props(
        model,
        {
            **library.metadata(model),
            "onnxbolt.ops": rows if isinstance(rows, str) else json.dumps(rows),
        },
    )
    return model


def with_configs(values: list[Any], kind: int = AttributeProto.INTS) -> ModelProto:
    """The model with another attribute `configs`."""
    model = sound()
    attribute = next(a for a in model.graph.node[0].attribute if a.name == "configs")
    attribute.CopyFrom(helper.make_attribute("configs", values, attr_type=kind))
    return model


def hostile_models(marker: Path) -> Iterator[tuple[str, Make]]:
    """Each as a function that makes it, with a name that says what is wrong with it."""
    words = hostile_strings(marker)
    for i, word in enumerate(words):
        if "\ud800" not in word:  # protobuf holds none
            yield f"op type {i}", partial(with_op_type, word)
        for field in FULL:
            yield f"{field} {i}", partial(with_ops, [{**FULL, field: word}])
        yield f"step {i}", partial(with_ops, [{**FULL, "chain": ["Bias", word]}])
        yield f"text {i}", partial(with_ops, json.dumps(word))
    for field in FULL:
        strange: tuple[Any, ...] = (None, -1, 2**70, 1.5, [], {}, [[]], [word], True, "true")
        for value in strange:
            if not (field in ("into", "to_nchw") and value is True) and not (
                field == "chain" and value == []
            ):
                yield f"{field} = {str(value)[:20]!r}", partial(with_ops, [{**FULL, field: value}])
    yield from _configs(words)
    for name, text in {
        "deep": "[" * 100_000,
        "objects": '{"a":' * 50_000,
        "empty": "",
        "number": "1e999",
        "null": "null",
    }.items():
        yield f"JSON {name}", partial(with_ops, text)
    yield "many steps", partial(with_ops, [{**FULL, "chain": ["Relu"] * 100_000}])
    yield "twice", partial(with_ops, [FULL, {**FULL, "kind": "conv"}])


def _configs(words: list[str]) -> Iterator[tuple[str, Make]]:
    row = ROWS[0].row()
    for column in range(len(row)):
        for value in (-1, 2**31, 2**62, -(2**63)):
            yield (
                f"configs[{column}] = {value}",
                partial(with_configs, [*row[:column], value, *row[column + 1 :]]),
            )
    others = sorted(family.number for family in {*FAMILIES.values()} - of_kind("gemm"))
    for number in (*others, 0, 99):
        yield f"family {number}", partial(with_configs, [*row[:3], number, *row[4:]])
    for count in (1, 24, 26, 49):
        yield f"{count} numbers", partial(with_configs, (row * 2)[:count])
    yield (
        "words",
        partial(
            with_configs, [word for word in words if "\ud800" not in word], AttributeProto.STRINGS
        ),
    )
    yield "fractions", partial(with_configs, [0.5] * 25, AttributeProto.FLOATS)
    depths = range(32, 32 * (library.MOST_KERNELS + 2), 32)
    yield (
        "many kernels",
        partial(
            with_configs, [number for depth in depths for number in (*row[:6], depth, *row[7:])]
        ),
    )
