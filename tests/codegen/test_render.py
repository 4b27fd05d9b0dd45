"""Generated translation units: golden texts, distinct names, refusals. `python -m
tests.codegen.test_render` rewrites the texts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.render import Instance, instance_name, render_unit
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, PRODUCT, STORE, codes
from onnxbolt.epilogues.step import EpilogueStep
from onnxbolt.errors import ToolchainError
from onnxbolt.families import FAMILIES, Family, only
from onnxbolt.families.attention import AttentionConfig, MaskKind
from onnxbolt.families.attention_sm90 import AttentionSm90Config, MaskForm
from onnxbolt.families.b2b_conv_2x import B2bConv2xConfig
from onnxbolt.families.b2b_conv_sm90 import B2bConvSm90Config
from onnxbolt.families.b2b_gemm_2x import B2bGemm2xConfig
from onnxbolt.families.b2b_gemm_sm90 import B2bGemmSm90Config
from onnxbolt.families.b2b_gemm_small import B2bGemmSmallConfig
from onnxbolt.families.b2b_gemm_wide_sm90 import B2bGemmWideSm90Config
from onnxbolt.families.b2b_halo_sm90 import B2bHaloSm90Config
from onnxbolt.families.b2b_stem_sm90 import B2bStemSm90Config
from onnxbolt.families.b2b_stored_sm90 import B2bStoredSm90Config
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.codes import Offsets, PartialSums
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv3d_sm90 import Conv3dSm90Config
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.conv_sm90 import ConvSm90Config
from onnxbolt.families.conv_transpose_sm90 import ConvTransposeSm90Config
from onnxbolt.families.depthwise import DepthwiseConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.families.gemm_rows_sm90 import GemmRowsSm90Config
from onnxbolt.families.gemm_skinny import GemmSkinnyConfig
from onnxbolt.families.gemm_sm90 import GemmSm90Config
from onnxbolt.families.group_norm import GroupNormConfig
from onnxbolt.families.halo_sm90 import HaloSm90Config
from onnxbolt.families.norm import NormConfig
from onnxbolt.families.pool import PoolConfig
from onnxbolt.families.quantized_conv_sm90 import QuantizedConvSm90Config
from onnxbolt.families.quantized_gemm_sm90 import QuantizedGemmSm90Config
from onnxbolt.families.stem_sm90 import StemSm90Config

GOLDEN = Path(__file__).parents[1] / "golden"
MMA: dict[str, Any] = {
    "arch": 80,
    "tile": (128, 128, 32),
    "warp": (64, 64, 32),
    "instruction": (16, 8, 16),
    "stages": 4,
    "swizzle": 1,
}
GEMM_2X = Gemm2xConfig(**MMA)
CONV_2X = Conv2xConfig(**MMA, walk=Walk.OPTIMIZED)
GEMM_3X = Gemm3xConfig(
    arch=90, tile=(128, 128, 64), cluster=(2, 1), schedule=Schedule.COOPERATIVE, access=8
)
B2B_GEMM_SM90 = B2bGemmSm90Config(
    arch=90,
    rows=64,
    columns=64,
    depth=256,
    later=(16, 0, 0),
    stages=8,
    tma_rows=True,
    consumers=2,
    resident=True,
)
GEMM_ROWS = GemmRowsSm90Config(
    arch=90, rows=128, columns=256, depth=448, stages=3, tma_rows=False, consumers=2, resident=False
)
B2B_GEMM_WIDE = B2bGemmWideSm90Config(
    arch=90, rows=64, columns=512, depth=16, later=(256, 64, 0), stages=4, tma_rows=False
)
B2B_GEMM_SMALL = B2bGemmSmallConfig(
    arch=80, rows=128, columns=8, depth=4, later=(4, 0, 0), access_k=4, access_n=4
)
B2B_STORED = B2bStoredSm90Config(
    arch=90,
    rows=192,
    columns=256,
    depth=64,
    last_columns=64,
    stages=4,
    consumers=3,
    resident=True,
)
B2B_MMA: dict[str, Any] = {
    "arch": 80,
    "rows": 64,
    "columns": 128,
    "depth": 32,
    "later": (64, 0, 0),
    "warp": (32, 64),
    "stages": 4,
    "access_k": 8,
    "access_n": 8,
}
B2B_GEMM_2X = B2bGemm2xConfig(**B2B_MMA)
B2B_CONV_2X = B2bConv2xConfig(**B2B_MMA, walk=Walk.OPTIMIZED)
GEMM_SM90 = GemmSm90Config(
    arch=90,
    rows=128,
    columns=256,
    k=64,
    cluster=(2, 1),
    schedule=Schedule.COOPERATIVE,
    consumers=2,
)
CONV_SM90 = ConvSm90Config(
    arch=90,
    rows=64,
    columns=64,
    k=64,
    stages=4,
    schedule=Schedule.PINGPONG,
    consumers=3,
    resident=True,
)
SWAPPED = dataclasses.replace(
    CONV_SM90,
    rows=96,
    columns=128,
    swapped=True,
    stages=0,
    schedule=Schedule.COOPERATIVE,
    consumers=1,
    resident=False,
)
NCHW_OUTPUT = dataclasses.replace(
    CONV_SM90, columns=256, stages=0, consumers=2, resident=False, access_out=1
)
HALO: dict[str, Any] = {
    "arch": 90,
    "channels": 64,
    "k_block": 64,
    "image_tile": (0, 0, 0),
    "stages": 3,
    "schedule": Schedule.PINGPONG,
    "resident": True,
}
HALO_SM90 = HaloSm90Config(**HALO, positions=224, stage_pixels=304, consumers=2)
B2B_HALO_SM90 = B2bHaloSm90Config(
    **HALO, positions=96, stage_pixels=144, later=(256, 0), consumers=3
)
STEM: dict[str, Any] = {
    "arch": 90,
    "pixels": 128,
    "columns": 64,
    "depth": 176,
    "filter": (7, 7, 3),
    "strides": (2, 2),
    "consumers": 4,
}
STEM_SM90 = StemSm90Config(**STEM)
B2B_STEM_SM90 = B2bStemSm90Config(**STEM, later_columns=64)
B2B_CONV_SM90 = B2bConvSm90Config(
    arch=90,
    rows=128,
    columns=64,
    k=64,
    later=(256, 0, 0),
    stages=4,
    schedule=Schedule.PINGPONG,
    consumers=2,
    resident=True,
)
DEPTHWISE = DepthwiseConfig(arch=90, rows=2, columns=4, filter=(3, 3, 1), access=4)
POOL = PoolConfig(arch=80)
ATTENTION = AttentionConfig(
    arch=80,
    queries=64,
    keys=64,
    size=64,
    value_size=64,
    rows=16,
    instruction=(16, 8, 16),
    stages=2,
    mask=MaskKind.FLOATS,
    access=8,
)
ATTENTION_SM90 = AttentionSm90Config(
    arch=90,
    keys=128,
    last_keys=128,
    size=64,
    value_size=64,
    consumers=3,
    stages=4,
    query_stages=2,
    schedule=Schedule.PINGPONG,
    overlap=True,
)
CONV_TRANSPOSE_SM90 = ConvTransposeSm90Config(
    arch=90, rows=128, columns=64, k=64, schedule=Schedule.COOPERATIVE, consumers=2
)
CONV3D_SM90 = Conv3dSm90Config(
    arch=90,
    rows=128,
    columns=32,
    k=32,
    stages=8,
    schedule=Schedule.COOPERATIVE,
    consumers=2,
    resident=True,
)
CODES: dict[str, Any] = {
    "arch": 90,
    "rows": 128,
    "columns": 128,
    "k": 128,
    "schedule": Schedule.COOPERATIVE,
    "consumers": 2,
    "access_in": 16,
    "access_out": 16,
}
GEMM_SKINNY = GemmSkinnyConfig(
    arch=90,
    rows=8,
    columns=16,
    instruction=(16, 8, 16),
    steps=4,
    warps=8,
    access_k=8,
    access_n=8,
)
GROUP_NORM = GroupNormConfig(arch=90, threads=256, access=8, resident=True)
NORM = NormConfig(arch=90, rows=4, lanes=32, vectors=3, access=8)

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
        Instance(NCHW_OUTPUT, DType.F16, DType.F32, ("Bias",)),
        Instance(CONV_SM90, DType.F16, DType.F32, ("Bias", "Add", STORE)),
        Instance(CONV_SM90, DType.F16, DType.F16, ("Bias", "Relu", "Mean")),
    ),
    "halo_sm90": (
        Instance(HALO_SM90, DType.F16, DType.F16, ("Bias", "Relu")),
        Instance(HALO_SM90, DType.BF16, DType.F32),
        Instance(dataclasses.replace(HALO_SM90, access_out=1), DType.F16, DType.F32, ("Bias",)),
    ),
    "stem_sm90": (Instance(STEM_SM90, DType.F16, DType.F16, ("Bias", "Relu")),),
    "pool": (Instance(POOL, DType.F16, DType.F16), Instance(POOL, DType.F32, DType.F32)),
    "depthwise": (Instance(DEPTHWISE, DType.F16, DType.F16, ("Bias", "HardSwish")),),
    "squeeze_excite": (
        Instance(only("squeeze_excite", 90), DType.F16, DType.F16, ("Relu", "HardSigmoid")),
        Instance(only("squeeze_excite", 90), DType.F16, DType.F16, ("Relu", "HardSigmoid", "Add")),
    ),
    "norm": (
        Instance(NORM, DType.F16, DType.F16, ("Add", STORE, "Scale", "Bias")),
        Instance(dataclasses.replace(NORM, access=4), DType.F32, DType.F32, ("Scale",)),
    ),
    "group_norm": (
        Instance(GROUP_NORM, DType.F16, DType.F16, ("Silu",)),
        Instance(
            dataclasses.replace(GROUP_NORM, access=4, resident=False), DType.F32, DType.F32, ()
        ),
    ),
    "attention": (Instance(ATTENTION, DType.F16, DType.F16),),
    "attention_sm90": (
        Instance(ATTENTION_SM90, DType.F16, DType.F16),
        Instance(
            dataclasses.replace(
                ATTENTION_SM90, keys=64, last_keys=64, mask=MaskForm.KEYS, banded=True
            ),
            DType.BF16,
            DType.BF16,
        ),
        Instance(ATTENTION_SM90, DType.F16, DType.E4M3, ("QuantizeE4M3",)),
    ),
    "b2b_gemm_sm90": (
        Instance(B2B_GEMM_SM90, DType.F16, DType.F32, ("Bias", "Relu", "Gemm", "Bias", "Clip")),
    ),
    "conv_transpose_sm90": (
        Instance(CONV_TRANSPOSE_SM90, DType.F16, DType.F16, ("Bias", "Relu")),
        Instance(CONV_TRANSPOSE_SM90, DType.BF16, DType.F32, ("Bias", "Add")),
    ),
    "conv3d_sm90": (
        Instance(CONV3D_SM90, DType.F16, DType.F16, ("Bias",)),
        Instance(CONV3D_SM90, DType.BF16, DType.F32, ("Bias", "Add", "LeakyRelu")),
    ),
    "quantized_gemm_sm90": (
        Instance(
            QuantizedGemmSm90Config(**CODES, partial_sums=PartialSums.TWO),
            DType.E4M3,
            DType.E4M3,
            ("Dequantize", "Bias", "GeluErf", "QuantizeE4M3"),
        ),
        Instance(
            QuantizedGemmSm90Config(**{**CODES, "access_out": 8}, offsets=Offsets.BY_COLUMN),
            DType.U8,
            DType.F16,
            ("Dequantize", "Bias"),
        ),
    ),
    "quantized_conv_sm90": (
        Instance(
            QuantizedConvSm90Config(**CODES, offsets=Offsets.BY_PIXEL),
            DType.U8,
            DType.U8,
            ("Dequantize", "Bias", "AddCodesU8", "Relu", "QuantizeU8"),
        ),
    ),
    "gemm_skinny": (
        Instance(GEMM_SKINNY, DType.F16, DType.F16, ("Bias", "GeluErf")),
        Instance(GEMM_SKINNY, DType.BF16, DType.F32, ("Silu", "Gate")),
    ),
    "gemm_rows_sm90": (Instance(GEMM_ROWS, DType.F16, DType.F16, ("Bias", "Relu")),),
    "b2b_conv_sm90": (
        Instance(
            B2B_CONV_SM90, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")
        ),
    ),
    "b2b_halo_sm90": (
        Instance(
            B2B_HALO_SM90, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")
        ),
    ),
    "b2b_stem_sm90": (
        Instance(B2B_STEM_SM90, DType.F16, DType.F16, ("Bias", "Relu", "Gemm", "Bias", "Relu")),
    ),
    "b2b_gemm_wide_sm90": (
        Instance(
            B2B_GEMM_WIDE,
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
            B2B_STORED,
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
    "resize": (
        Instance(only("resize", 80), DType.F16, DType.F16),
        Instance(only("resize", 80), DType.F16, DType.F32, ("Add", "Relu")),
    ),
    "pixel_shuffle": (Instance(only("depth_to_space", 80), DType.F16, DType.F16, ("Bias",)),),
    "grid_sample": (Instance(only("grid_sample", 80), DType.F16, DType.F32),),
    "elementwise": (
        Instance(only("elementwise", 80), DType.F16, DType.F16, ("Scale", "Bias", "Relu")),
    ),
}


@pytest.mark.parametrize("family", UNITS)
def test_unit_is_golden(family: str) -> None:
    assert render_unit(UNITS[family]) == (GOLDEN / f"{family}.cu").read_text()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=str)
def test_each_family_s_header_declares_its_type(family: Family[Any]) -> None:
    header = resource_dir("custom_ops") / "families" / family.name / "kernel.h"
    assert re.search(rf"^(struct|using) {family.type_name}\b", header.read_text(), re.MULTILINE)


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
        "tile": (64, 128, 32),
        "warp": (32, 64, 32),
        "instruction": (16, 8, 8),
        "stages": 3,
        "swizzle": 4,
        "access_k": 4,
        "access_n": 4,
        "walk": Walk.ANALYTIC,
    }
    variants = [
        dataclasses.replace(base, config=dataclasses.replace(CONV_2X, **{field: value}))
        for field, value in changes.items()
    ]
    variants += [
        Instance(dataclasses.replace(SWAPPED, swapped=swapped), DType.F16, DType.F16)
        for swapped in (False, True)
    ]
    variants += [
        dataclasses.replace(base, config=GEMM_2X),
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
        "resident": True,
        "stages": 3,
        "columns": 128,
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
    with pytest.raises(ValueError, match="not steps of a kernel"):
        Instance(GEMM_2X, DType.F16, DType.F16, chain)


def test_launch_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="launch choices"):
        Instance(dataclasses.replace(GEMM_SM90, split_k=2), DType.F16, DType.F16)


def test_poolings_of_different_alignment_have_different_names() -> None:
    """They stand in one translation unit, and their order there must not depend on a set's."""
    instances = [
        Instance(dataclasses.replace(POOL, access=access), DType.F16, DType.F16)
        for access in (1, 2, 4, 8)
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
    """But for the steps of codes, which have a header of their own."""
    header = (resource_dir("custom_ops") / "epilogue" / "steps.h").read_text()
    kinds = {"": "kNone", "vector": "kVector", "tensor": "kTensor", "rotation": "kRotation"}
    for name, row in EPILOGUES.items():
        if name not in (*CASTS.values(), PRODUCT, STORE, *(step.name for step in codes.STEPS)):
            arguments = f"Operand::{kinds[row.operand]}" + (
                f", {len(row.params)}" if row.params else ""
            )
            # steps without operands and parameters derive from HalfStep
            of_values_alone = not row.operand and not row.params
            bases = [f"Step<{arguments}", *(["HalfStep<"] if of_values_alone else [])]
            assert any(f"struct {row.functor} : {base}" in header for base in bases)


@pytest.mark.parametrize("step", codes.STEPS, ids=lambda step: step.name)
def test_every_step_of_codes_has_its_functor_in_the_header(step: EpilogueStep) -> None:
    header = (resource_dir("custom_ops") / "epilogue" / "codes.h").read_text()
    bases = dict(re.findall(r"struct (\w+) : (.+?) {", header))
    base = bases[step.functor]
    while not base.startswith("Step<"):
        base = bases[base.partition("<")[0]]
    kind = {"": "kNone", "vector": "kVector", "tensor": "kTensor"}[step.operand]
    params = f", {len(step.params)}" if step.params else ""
    assert base == f"Step<Operand::{kind}{params}>"


def test_missing_resources_name_the_cure() -> None:
    with pytest.raises(ToolchainError, match="reinstall onnxbolt"):
        resource_dir("no_such_directory")


if __name__ == "__main__":
    for family, instances in UNITS.items():
        (GOLDEN / f"{family}.cu").write_text(render_unit(instances))
