"""No model, lock file or database runs code, hangs, or leaves a file: `python -m tests.hostile`
tries ten times as many."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxbolt import checks
from onnxbolt.codegen.render import Instance, render, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families import named
from onnxbolt.library import build_for, generated_sources, make_manifest, manifest_of_model
from onnxbolt.opspec import configs_of_node, ops_from_json
from onnxbolt.tune.database import Database
from onnxbolt.tune.lockfile import Lock
from tests import library_fixtures as fx
from tests.conftest import ROOT
from tests.hostile import archives, extensions, locks, models
from tests.hostile.trial import complaint, recomputed_digests
from tests.hostile.words import hostile_strings

WORDS = hostile_strings(Path("/nowhere/ran"))
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:<>,. ")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(models.FULL)) | st.text(), inner, max_size=8)
    ),
    max_leaves=12,
)
INT64 = st.integers(-(2**63), 2**63 - 1)
LOCK_PARTS = sorted(json.loads(locks.LOCK.text()).keys() - {"schema"})


def test_an_op_types_name_compiles_no_code(tmp_path: Path) -> None:
    """The model of issue 17: its library ran `system(..)` when it was loaded."""
    marker = tmp_path / "ran"
    model = models.with_op_type(hostile_strings(marker)[0])
    onnx.save(model, tmp_path / "evil.onnx")
    with (
        recomputed_digests(),
        pytest.raises(InputError, match=r"op type .* letters, digits and underscores are expected"),
    ):
        build_for(tmp_path / "evil.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["evil.onnx"]


def test_a_sound_model_passes_all_checks() -> None:
    """Else the refusals below would say nothing."""
    with recomputed_digests():
        assert manifest_of_model(models.sound()).ops == (fx.GEMM.spec,)
    assert ops_from_json(json.dumps([models.FULL]))


def test_hostile_values_of_a_model_are_refused(tmp_path: Path) -> None:
    """A hostile string or number in every field that a template or a command line can see."""
    marker, complaints = tmp_path / "ran", {}
    for i, (name, make) in enumerate(itertools.islice(models.hostile_models(marker), 0, None, 4)):
        onnx.save(make(), tmp_path / "evil.onnx")
        command = "build" if i % 5 else "inspect"
        if found := complaint(
            [command, tmp_path / "evil.onnx"], tmp_path, marker, may_pass=command == "inspect"
        ):
            complaints[name] = found
    assert complaints == {}
    assert i > 100


def test_extensions_that_are_not_installed_are_one_error(tmp_path: Path) -> None:
    """Models, lock files and options that name extensions, or hold what only these could add."""
    directory = tmp_path / "files"
    directory.mkdir()
    complaints = dict(extensions.trials(directory, tmp_path / "ran"))
    assert {name: said for name, said in complaints.items() if said} == {}
    assert len(complaints) > 200


@pytest.mark.parametrize("kind", ["external", "enormous", "deep"])
def test_models_out_of_an_archive(tmp_path: Path, kind: str) -> None:
    """Data outside of the model's directory, shapes of terabytes, and nesting end in one line,
    if not in a plan."""
    directory, complaints = tmp_path / "archive", {}
    directory.mkdir()
    found = {
        "external": lambda: archives.external_models(directory),
        "enormous": archives.enormous_models,
        "deep": archives.deep_models,
    }
    for name, model in found[kind]():
        onnx.save(model, directory / "evil.onnx")
        command = ["optimize", directory / "evil.onnx", directory / "out.onnx", "--dry-run"]
        if said := complaint(
            command, directory, tmp_path / "ran", may_pass=kind != "external" or "shape" in name
        ):
            complaints[name] = said
    assert complaints == {}


def test_hostile_lock_files(tmp_path: Path) -> None:
    """A text that is shown alone may be anything; whatever else is not as onnxbolt writes it is
    refused."""
    path, accepted = tmp_path / "hostile.lock", 0
    for _, text in locks.hostile_locks(WORDS, share=7):
        path.write_text(text)
        try:
            lock = Lock.read(path)
        except InputError:
            continue
        accepted += 1
        assert lock.text().encode()
        assert all(isinstance(choice.config.row()[0], int) for choice in lock.choices.values())
    assert 0 < accepted < 150


def test_hostile_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    marker, files, complaints = tmp_path / "ran", tmp_path / "files", {}
    files.mkdir()
    for name, text in locks.hostile_exports(WORDS, share=9):
        (files / "other.jsonl").write_text(text)
        if found := complaint(
            ["cache", "merge", files / "other.jsonl"], files, marker, may_pass=True
        ):
            complaints[name] = found
    for name, path in locks.hostile_databases(WORDS, files, share=9):
        if found := complaint(["cache", "merge", path], files, marker, may_pass=True):
            complaints[name] = found
    assert complaints == {}
    assert complaint(["cache", "list"], files, marker, may_pass=True) == ""
    with Database() as database:
        accepted = [m for key in database.keys() for m in database.measurements(key)]  # noqa: SIM118
    assert {m.config for m in accepted} <= {None, *(m.config for m in locks.MEASUREMENTS)}


@pytest.mark.parametrize("word", WORDS)
def test_templates_render_no_hostile_string(word: str) -> None:
    """A second wall: what a check forgot is an error where a source is made of it."""
    if set(word) <= _SAFE:
        return
    row = {
        "name": "n",
        "kind": "gemm",
        "first_operand": 2,
        "element": 1,
        "output": 1,
        "epilogue": "",
        "operands": "",
        "nchw_input": 0,
        "stores": False,
        "to_nchw": False,
        "means": False,
        "indices": 0,
        "type_of_values": 0,
    }
    arch = {"number": 80, "name": "sm_80", "compute_capability": 80, "alone": False}
    facts = {"number": 80, "facts": [("int", "kSharedMemory", 1)]}
    for field in ("name", "kind", "epilogue", "operands"):
        with pytest.raises(ValueError, match="is not rendered"):
            render(
                "manifest.cc.j2",
                ops=[{**row, field: word}],
                archs=[arch],
                format=1,
                digest="",
            )
    for archs, digest in (([arch], word), ([{**arch, "name": word}], "")):
        with pytest.raises(ValueError, match="is not rendered"):
            render("manifest.cc.j2", ops=[row], archs=archs, format=1, digest=digest)
    kernel: dict[str, object] = {
        "name": "n",
        "key": "",
        "row": "",
        "types": "float, float",
        "shared_memory": 1024,
    }
    unit: dict[str, object] = {"family": "f", "type": "T", "arch": facts, "headers": []}
    unit |= {"at_launch": ["kMinM"], "kernels": [kernel]}
    assert render("unit.cu.j2", **unit)
    hostile: list[dict[str, object]] = [
        {"headers": [word]},
        {"at_launch": [word]},
        {"arch": {**facts, "facts": [("int", word, 1)]}},
    ]
    hostile += [{"kernels": [{**kernel, field: word}]} for field in kernel]
    for changed in hostile:
        with pytest.raises(ValueError, match="is not rendered"):
            render("unit.cu.j2", **{**unit, **changed})


def test_units_have_harmless_names_and_texts() -> None:
    manifest = make_manifest([fx.GEMM.spec], [fx.GEMM.spec.instance(row) for row in models.ROWS])
    assert all(
        checks.NAME.fullmatch(name.replace(".", "_")) for name in generated_sources(manifest)
    )
    assert "system" not in render_unit(
        [Instance(fx.config(named("gemm_2x")), DType.F16, DType.F16, ("Bias",))]
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(models.FULL, JSON)) | JSON, max_size=3
    )
)
def test_random_op_types_are_sound_or_refused(rows: object) -> None:
    try:
        ops = ops_from_json(json.dumps(rows))
    except InputError:
        return
    for op in ops:
        render(
            "manifest.cc.j2",
            ops=[
                {
                    "name": op.name,
                    "kind": op.kind,
                    "element": 1,
                    "output": 1,
                    "epilogue": ",".join(op.steps),
                    "operands": op.operands,
                    "nchw_input": 0,
                    "stores": False,
                    "to_nchw": False,
                    "means": False,
                }
            ],
            archs=[80],
            format=1,
            digest="",
        )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.lists(INT64 | st.integers(0, 200), max_size=60),
    st.dictionaries(st.integers(0, 24), st.integers(0, 300)),
)
def test_random_configurations_are_sound_or_refused(
    numbers: list[int], changes: dict[int, int]
) -> None:
    row = models.ROWS[0].row()
    for column, value in changes.items():
        row[column] = value
    for values in (numbers, row):
        try:
            configs = configs_of_node(models.with_configs(values).graph.node[0])
        except InputError:
            continue
        for config in configs:
            render_unit([Instance(config.instance(), DType.F16, DType.F16)])


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.fixed_dictionaries({"schema": st.just(3)}, optional=dict.fromkeys(LOCK_PARTS, JSON)) | JSON
)
def test_random_lock_files_are_refused(
    tmp_path_factory: pytest.TempPathFactory, values: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.lock"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError):
        Lock.read(path)


@pytest.mark.parametrize("module", ["ninja", "onnxbolt", "json", "resource"])
def test_no_module_of_the_current_directory_is_run(tmp_path: Path, module: str) -> None:
    """Archives bring models together with other files, and users go there: `python -m` would
    look there first."""
    (tmp_path / f"{module}.py").write_text("open('ran', 'w'); raise SystemExit(0)")
    program = (
        "from onnxbolt.codegen.artifacts import Unit, compile_units\nfrom onnxbolt.codegen.nvcc"
        " import find_toolchain\nprint(compile_units([Unit('a.cc', 'int hostile_directory;')],"
        " find_toolchain()))"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ONNXBOLT_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert not (tmp_path / "ran").exists()
