"""The faults that tests/gpu/planted_faults.py plants: each still applies, and each family has a
model and the kinds that it can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families import FAMILIES, Family, named
from onnxbolt.library import manifest_of_model, metadata
from tests.edits import count
from tests.gpu import planted_faults
from tests.gpu.fault_list import BIAS, ELEMENT, FAULTS, K_BLOCK, KINDS, PIXEL, STALE, SWAP, Fault
from tests.gpu.fault_models import MODELS, prepare

NO_PRODUCT = {
    named("resize"),
    named("pixel_shuffle"),
    named("grid_sample"),
    named("layout"),
    named("elementwise"),
    named("norm"),
    named("group_norm"),
}
NO_BIAS = {
    named("pool"),
    named("resize"),
    named("pixel_shuffle"),
    named("grid_sample"),
    named("layout"),
    named("attention"),
    named("attention_sm90"),
}
NO_STALE = {named("gemm_3x")}  # CUTLASS's own stores


def _name(fault: Fault) -> str:
    return f"{fault.family.name}-{fault.kind}"


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_each_edit_s_text_stands_once_in_the_sources(fault: Fault) -> None:
    texts = {
        edit.file: (resource_dir("custom_ops") / edit.file).read_text() for edit in fault.edits
    }
    assert all(
        count(texts[edit.file], edit.old) == 1 and edit.new != edit.old for edit in fault.edits
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=repr)
def test_each_family_has_the_faults_that_it_can_have(family: Family[Any]) -> None:
    kinds = [fault.kind for fault in FAULTS if fault.family is family]
    absent = {
        K_BLOCK: NO_PRODUCT,
        BIAS: NO_BIAS,
        STALE: NO_STALE,
        PIXEL: set(),
        SWAP: set(),
        ELEMENT: set(),
    }
    assert sorted(kinds) == sorted(kind for kind in KINDS if family not in absent[kind])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=repr)
def test_each_family_s_model_runs_a_kernel_of_it(family: Family[Any]) -> None:
    assert family in MODELS
    prepared = prepare(family)
    manifest = manifest_of_model(prepared.optimized)
    assert manifest == prepared.manifest
    # digest of the sources without a fault
    assert metadata(prepared.optimized)["onnxbolt.digest"] == manifest.digest
    assert family in {instance.config.family for instance in manifest.instances}


def test_a_fault_is_in_the_copy_alone(tmp_path: Path) -> None:
    fault = FAULTS[0]
    planted_faults.edited(tmp_path / "copy", fault)
    real = resource_dir("custom_ops")
    different = {
        path.relative_to(real).as_posix()
        for path in real.rglob("*")
        if path.is_file()
        and path.read_bytes() != (tmp_path / "copy" / path.relative_to(real)).read_bytes()
    }
    assert different == {edit.file for edit in fault.edits}
