"""Generated translation units: golden texts, distinct names, refusals. `python -m
tests.codegen.test_render` rewrites the texts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.render import Instance, instance_name, render_unit, type_name
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, PRODUCT, STORE
from onnxbolt.errors import ToolchainError
from onnxbolt.kernels import elementwise, resize, squeeze_excite
from onnxbolt.kernels.config import UNBOUNDED, Family, Iterator, KernelConfig, Schedule

GOLDEN = Path(__file__).parents[1] / "golden"
GEMM_2X = KernelConfig(
    80, 0, UNBOUNDED, Family.GEMM_2X, (128, 128, 32), (64, 64, 32), (16, 8, 16), 4
)
GEMM_3X = KernelConfig(
    90, 0, UNBOUNDED, Family.GEMM_3X, (128, 128, 64), cluster=(2, 1), schedule=Schedule.COOPERATIVE
)
CONV_2X = dataclasses.replace(GEMM_2X, family=Family.CONV_2X, iterator=Iterator.OPTIMIZED)
CHAIN = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.B2B_GEMM_SM90,
    (64, 64, 256),
    (16, 0, 0),
    stages=8,
    consumers=2,
    resident=1,
)
GEMM_ROWS = dataclasses.replace(
    CHAIN,
    family=Family.GEMM_ROWS_SM90,
    threadblock=(128, 256, 448),
    warp=(0, 0, 0),
    stages=3,
    align_a=1,
    resident=0,
)
CHAIN_WIDE = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.B2B_GEMM_WIDE_SM90,
    (64, 512, 16),
    (256, 64, 0),
    stages=4,
    align_a=1,
    consumers=2,
)
B2B_GEMM_SMALL = KernelConfig(
    80, 0, UNBOUNDED, Family.B2B_GEMM_SMALL, (128, 8, 4), (4, 0, 0), align_a=4, align_c=4
)
CHAIN_STORED = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.B2B_STORED_SM90,
    (192, 256, 64),
    (64, 0, 0),
    stages=4,
    consumers=3,
    resident=1,
)
B2B_GEMM_2X = KernelConfig(
    80, 0, UNBOUNDED, Family.B2B_GEMM_2X, (64, 128, 32), (64, 0, 0), (32, 64, 0), stages=4
)
B2B_CONV_2X = dataclasses.replace(
    B2B_GEMM_2X, family=Family.B2B_CONV_2X, iterator=Iterator.OPTIMIZED
)
GEMM_SM90 = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.GEMM_SM90,
    (128, 256, 64),
    cluster=(2, 1),
    schedule=Schedule.COOPERATIVE,
    consumers=2,
)
CONV_SM90 = dataclasses.replace(
    GEMM_SM90,
    family=Family.CONV_SM90,
    threadblock=(64, 64, 64),
    stages=4,
    cluster=(1, 1),
    schedule=Schedule.PINGPONG,
    consumers=3,
    resident=1,
)
SWAPPED = dataclasses.replace(
    CONV_SM90,
    threadblock=(96, 128, 64),
    instruction=(1, 0, 0),
    stages=0,
    schedule=Schedule.COOPERATIVE,
    consumers=1,
    resident=0,
)
PLANES = dataclasses.replace(
    CONV_SM90, threadblock=(64, 256, 64), stages=0, consumers=2, resident=0, align_c=1
)
HALO_SM90 = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.HALO_SM90,
    (64, 224, 64),
    instruction=(304, 0, 0),
    stages=3,
    schedule=Schedule.PINGPONG,
    consumers=2,
    resident=1,
)
STEM_SM90 = KernelConfig(
    90,
    0,
    UNBOUNDED,
    Family.STEM_SM90,
    (128, 64, 176),
    (7, 7, 3),
    (2, 2, 1),
    align_a=1,
    align_b=1,
    consumers=4,
    resident=1,
)
CHAIN_CONV = dataclasses.replace(
    CONV_SM90,
    family=Family.B2B_CONV_SM90,
    threadblock=(128, 64, 64),
    warp=(256, 0, 0),
    consumers=2,
)
CHAIN_HALO = dataclasses.replace(
    HALO_SM90,
    family=Family.B2B_HALO_SM90,
    threadblock=(64, 96, 64),
    instruction=(144, 256, 0),
    consumers=3,
)
CHAIN_FIRST = dataclasses.replace(STEM_SM90, family=Family.B2B_STEM_SM90, instruction=(2, 2, 64))
DEPTHWISE = KernelConfig(
    90, 0, UNBOUNDED, Family.DEPTHWISE, (2, 4, 128), (3, 3, 1), align_a=4, align_b=4, align_c=4
)
POOL = KernelConfig(80, 0, UNBOUNDED, Family.POOL, (0, 0, 0))

UNITS = {
    "gemm_2x": (
        Instance(GEMM_2X, DType.F16, DType.F16, ("Bias", "Relu")),
        Instance(GEMM_2X, DType.F16, DType.F32),
    ),
    "gemm_3x": (Instance(GEMM_3X, DType.F16, DType.F16, ("Bias", "Add", "GeluErf")),),
    "conv_2x": (Instance(CONV_2X, DType.BF16, DType.BF16, ("Bias", "Clip")),),
    "gemm_sm90": (Instance(GEMM_SM90, DType.F16, DType.F16, ("Bias", "GeluErf")),),
    "conv_sm90": (
        Instance(CONV_SM90, DType.F16, DType.F16, ("Bias", "Add", "Relu")),
        Instance(SWAPPED, DType.F16, DType.F16, ("Bias",)),
        Instance(PLANES, DType.F16, DType.F32, ("Bias",)),
        Instance(CONV_SM90, DType.F16, DType.F32, ("Bias", "Add", STORE)),
        Instance(CONV_SM90, DType.F16, DType.F16, ("Bias", "Relu", "Mean")),
    ),
    "halo_sm90": (
        Instance(HALO_SM90, DType.F16, DType.F16, ("Bias", "Relu")),
        Instance(HALO_SM90, DType.BF16, DType.F32),
        Instance(dataclasses.replace(HALO_SM90, align_c=1), DType.F16, DType.F32, ("Bias",)),
    ),
    "stem_sm90": (Instance(STEM_SM90, DType.F16, DType.F16, ("Bias", "Relu")),),
    "pool": (Instance(POOL, DType.F16, DType.F16), Instance(POOL, DType.F32, DType.F32)),
    "depthwise": (Instance(DEPTHWISE, DType.F16, DType.F16, ("Bias", "HardSwish")),),
    "squeeze_excite": (
        Instance(squeeze_excite.config(90), DType.F16, DType.F16, ("Relu", "HardSigmoid")),
    ),
    "b2b_gemm_sm90": (
        Instance(CHAIN, DType.F16, DType.F32, ("Bias", "Relu", "Gemm", "Bias", "Clip")),
    ),
    "gemm_rows_sm90": (Instance(GEMM_ROWS, DType.F16, DType.F16, ("Bias", "Relu")),),
    "b2b_conv_sm90": (
        Instance(CHAIN_CONV, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")),
    ),
    "b2b_halo_sm90": (
        Instance(CHAIN_HALO, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")),
    ),
    "b2b_stem_sm90": (
        Instance(CHAIN_FIRST, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Relu")),
    ),
    "b2b_gemm_wide_sm90": (
        Instance(
            CHAIN_WIDE,
            DType.F16,
            DType.F16,
            ("Bias", "Relu", "Gemm", "Bias", "Relu", "Gemm", "Bias"),
        ),
    ),
    "b2b_gemm_small": (
        Instance(B2B_GEMM_SMALL, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add")),
    ),
    "b2b_stored_sm90": tuple(
        Instance(
            CHAIN_STORED,
            DType.F16,
            DType.F16,
            ("Bias", "Add", "Relu", *store, "Gemm", "Bias", "Relu"),
        )
        for store in (("Store",), ())
    ),
    "b2b_gemm_2x": (
        Instance(B2B_GEMM_2X, DType.BF16, DType.BF16, ("Bias", "GeluErf", "Gemm", "Bias", "Add")),
    ),
    "b2b_conv_2x": (
        Instance(
            B2B_CONV_2X, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")
        ),
    ),
    "resize": (Instance(resize.config(80), DType.F16, DType.F16),),
    "elementwise": (
        Instance(elementwise.config(80), DType.F16, DType.F16, ("Scale", "Bias", "Relu")),
    ),
}


@pytest.mark.parametrize("family", UNITS)
def test_unit_is_golden(family: str) -> None:
    assert render_unit(UNITS[family]) == (GOLDEN / f"{family}.cu").read_text()


@pytest.mark.parametrize("family", Family, ids=lambda family: family.name)
def test_each_family_s_header_declares_its_type(family: Family) -> None:
    header = resource_dir("custom_ops") / "families" / family.name.lower() / "kernel.h"
    assert re.search(rf"^(struct|using) {type_name(family)}\b", header.read_text(), re.MULTILINE)


def test_no_family_includes_another_one_s_headers() -> None:
    """The runtime and the building blocks include none."""
    root = resource_dir("custom_ops")
    for path in (path for path in root.rglob("*") if path.is_file()):
        for family in re.findall(r'#include "families/(\w+)/', path.read_text()):
            assert path.is_relative_to(root / "families" / family), path


def test_names_differ_where_instances_differ() -> None:
    base = Instance(CONV_2X, DType.F16, DType.F16, ("Relu",))
    changes: dict[str, Any] = {
        "arch": 90,
        "threadblock": (64, 128, 32),
        "warp": (32, 64, 32),
        "instruction": (16, 8, 8),
        "stages": 3,
        "swizzle": 4,
        "align_a": 4,
        "align_b": 4,
        "align_c": 4,
        "iterator": Iterator.ANALYTIC,
        "family": Family.GEMM_2X,
    }
    variants = [
        dataclasses.replace(base, config=dataclasses.replace(CONV_2X, **{field: value}))
        for field, value in changes.items()
    ]
    variants += [
        Instance(dataclasses.replace(SWAPPED, instruction=(swapped, 0, 0)), DType.F16, DType.F16)
        for swapped in (0, 1)
    ]
    variants += [
        dataclasses.replace(base, out=DType.F32),
        dataclasses.replace(base, chain=("Relu", "Bias")),
    ]
    names = {instance_name(instance) for instance in [base, *variants]}
    assert len(names) == len(variants) + 1
    assert all(name.isidentifier() for name in names)


def test_names_of_3x_differ_by_cluster_and_schedule() -> None:
    configs = [
        GEMM_3X,
        dataclasses.replace(GEMM_3X, cluster=(1, 2)),
        dataclasses.replace(GEMM_3X, schedule=Schedule.PINGPONG),
    ]
    assert len(
        {instance_name(Instance(config, DType.F16, DType.F16)) for config in configs}
    ) == len(configs)


def test_names_of_our_sm90_kernels_differ_by_what_is_compiled() -> None:
    changes: dict[str, Any] = {
        "cluster": (1, 2),
        "schedule": Schedule.PINGPONG,
        "consumers": 3,
        "resident": 1,
        "stages": 3,
        "threadblock": (128, 128, 64),
    }
    configs = [
        GEMM_SM90,
        *(dataclasses.replace(GEMM_SM90, **{field: value}) for field, value in changes.items()),
    ]
    assert len(
        {instance_name(Instance(config, DType.F16, DType.F16)) for config in configs}
    ) == len(configs)


@pytest.mark.parametrize("chain", [("CastF32",), ("Bias", "Unheard")])
def test_chain_of_unknown_steps_or_casts_is_refused(chain: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no steps of a kernel"):
        Instance(GEMM_2X, DType.F16, DType.F16, chain)


def test_launch_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="launch choices"):
        Instance(dataclasses.replace(GEMM_2X, split_k=2), DType.F16, DType.F16)


def test_poolings_of_different_alignment_have_different_names() -> None:
    """They stand in one translation unit, and their order there must not depend on a set's."""
    instances = [
        Instance(dataclasses.replace(POOL, align_a=a, align_b=a, align_c=a), DType.F16, DType.F16)
        for a in (1, 2, 4, 8)
    ]
    assert len({instance_name(instance) for instance in instances}) == len(instances)


def test_pooling_has_no_epilogue() -> None:
    with pytest.raises(ValueError, match="no epilogue"):
        Instance(POOL, DType.F16, DType.F16, ("Relu",))


def test_unit_of_mixed_families_is_refused() -> None:
    with pytest.raises(ValueError, match="one family"):
        render_unit([*UNITS["gemm_2x"], *UNITS["conv_2x"]])
    with pytest.raises(ValueError, match="one family"):
        render_unit([])


def test_repeated_instance_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        render_unit([*UNITS["pool"], UNITS["pool"][0]])


def test_every_step_has_its_functor_in_the_header() -> None:
    header = (resource_dir("custom_ops") / "epilogue" / "steps.h").read_text()
    kinds = {"": "kNone", "vector": "kVector", "tensor": "kTensor"}
    for name, row in EPILOGUES.items():
        if name not in (*CASTS.values(), PRODUCT, STORE):
            arguments = f"Operand::{kinds[row.operand]}" + (
                f", {len(row.params)}" if row.params else ""
            )
            of_values_alone = not row.operand and not row.params  # what a HalfStep is
            bases = [f"Step<{arguments}", *(["HalfStep<"] if of_values_alone else [])]
            assert any(f"struct {row.functor} : {base}" in header for base in bases)


def test_missing_resources_name_the_cure() -> None:
    with pytest.raises(ToolchainError, match="reinstall onnxbolt"):
        resource_dir("no_such_directory")


if __name__ == "__main__":
    for family, instances in UNITS.items():
        (GOLDEN / f"{family}.cu").write_text(render_unit(instances))
