"""Normalizations of groups: sizes, and a library's times."""

from __future__ import annotations

import dataclasses

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.problems import GroupNormProblem
from tests.support import planned

NORM = GroupNormProblem(2, 4096, 320, 32, DType.F16, DType.F16, ("Silu",))


def test_tensors_are_counted_and_vectors_are_not() -> None:
    tensor = 2 * 4096 * 320 * 2
    assert NORM.bytes_moved == 2 * tensor
    assert dataclasses.replace(NORM, chain=("Silu", "Add")).bytes_moved == 3 * tensor
    assert dataclasses.replace(NORM, out=DType.F32).bytes_moved == 3 * tensor
    assert dataclasses.replace(NORM, before=True, modulated=True).bytes_moved == 2 * tensor
    assert (NORM.rows, NORM.columns, NORM.group) == (8192, 320, 10)


def test_it_is_described_and_kept_as_json() -> None:
    assert NORM.description == "group norm 2x4096x320 in 32 groups, f16, Silu"
    fields = plain(NORM)
    assert isinstance(fields, dict)
    with planned(named("group_norm")):
        assert problem_from("GroupNormProblem", fields) == NORM


def test_onnx_runtime_has_a_kernel_for_each_operator() -> None:
    """InstanceNormalization alone has gamma and beta; SiLU is two kernels."""
    bare = dataclasses.replace(NORM, chain=())
    instances = dataclasses.replace(bare, groups=320)
    arch = get(90)
    times = [p.onnxruntime_us(arch) for p in (instances, bare, NORM)]
    assert times == sorted(times)
    assert len(set(times)) == 3
    assert dataclasses.replace(bare, before=True).onnxruntime_us(arch) > times[1]
    assert dataclasses.replace(bare, modulated=True).onnxruntime_us(arch) > times[1]
