"""Kernels of attention whose registers are spilled are no candidates. attention_spills.jsonl has
kernels near the limits of registers as nvcc 13.0 compiled them: the bytes of spilled stores and
loads of a thread, 0 if none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, config_from, named
from onnxbolt.families.attention import AttentionConfig, compiles_well
from onnxbolt.families.attention_sm90 import AttentionSm90Config, needed_registers, registers
from onnxbolt.problems import AttentionProblem
from onnxbolt.tune.library import Uncompiled, build

FEW = 36  # bytes of a spill that registers do not explain: a predicate, or a barrier of a loop


@dataclasses.dataclass(frozen=True)
class Stored:
    config: KernelConfig
    dtype: DType
    bytes: int


def _stored() -> list[Stored]:
    lines = Path(__file__).with_name("attention_spills.jsonl").read_text().splitlines()
    found = map(json.loads, lines)
    return [Stored(config_from(at["row"]), DType(at["dtype"]), at["bytes"]) for at in found]


STORED = _stored()


def _offered(stored: Stored) -> bool:
    """True if the rule of its family lets the configuration be a candidate."""
    config: Any = stored.config
    if isinstance(config, AttentionSm90Config):
        return needed_registers(config) <= registers(config)
    assert isinstance(config, AttentionConfig)
    return compiles_well(config, stored.dtype, get(config.arch))


def test_what_spills_on_wgmma_is_not_offered() -> None:
    mine = [at for at in STORED if isinstance(at.config, AttentionSm90Config)]
    assert [at for at in mine if at.bytes and _offered(at)] == []
    kept = sum(map(_offered, mine)) / sum(at.bytes == 0 for at in mine)
    assert kept > 0.7  # part of the kernels near the limit that compile without spills


def test_what_spills_much_on_mma_sync_is_not_offered() -> None:
    mine = [at for at in STORED if isinstance(at.config, AttentionConfig)]
    assert [at for at in mine if at.bytes > FEW and _offered(at)] == []
    kept = sum(map(_offered, mine)) / sum(at.bytes == 0 for at in mine)
    assert kept > 0.7


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize(
    ("length", "band", "mask", "shape"),
    [
        (197, (), (), ()),
        (257, (), (), ()),
        (512, (), ("kept",), (8, 1, 1, 512)),
        (384, (), ("added", "f32"), (384, 384)),
        (1024, (-(2**31), 0, 0), (), ()),
    ],
)
def test_every_candidate_keeps_to_the_rule(
    dtype: DType, length: int, band: Any, mask: Any, shape: Any
) -> None:
    problem = AttentionProblem(
        8, 12, 12, length, length, 64, 64, dtype, dtype, mask, shape, band=band
    )
    for name in ("attention", "attention_sm90"):
        found = named(name).candidates(problem, get(90))
        assert found
        assert all(_offered(Stored(config, dtype, 0)) for config in found)


@pytest.mark.nvcc
@pytest.mark.timeout(4 * 3600)
def test_the_stored_kernels_spill_as_stored() -> None:
    known = {Instance(at.config.instance(), at.dtype, at.dtype): at.bytes > 0 for at in STORED}
    found = {instance: isinstance(result, Uncompiled) for instance, result in build(known)}
    assert found == known


@pytest.mark.nvcc
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_candidates_of_bf16_spill_where_those_of_fp16_do(dtype: DType) -> None:
    sample = [at for at in STORED if at.dtype is DType.F16][::12]
    known = {Instance(at.config.instance(), dtype, dtype): at.bytes > 0 for at in sample}
    found = {instance: isinstance(result, Uncompiled) for instance, result in build(known)}
    assert found == known
