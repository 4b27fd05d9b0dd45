"""Registering extensions, finding those of installed packages, and models that name one."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import archs, library, names
from onnxbolt.archs import Arch
from onnxbolt.cli import main
from onnxbolt.codegen.digest import (
    kernel_sources_digest,
    present_sources_digest,
    valid_digests,
)
from onnxbolt.codegen.resources import EXTENSIONS
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.epilogues.step import EpilogueStep, unary
from onnxbolt.errors import FrozenError, InputError, LibraryError
from onnxbolt.extensions import Extension, load, register, unregister
from onnxbolt.families import FAMILIES, Family, KernelConfig, config_from, only
from onnxbolt.inspection import inspect_model
from onnxbolt.library import Manifest, build_for, manifest_of_model, units
from onnxbolt.ops import OPS
from onnxbolt.ops.base import FusedOp
from onnxbolt.problems import GemmProblem, Problem
from onnxbolt.tune.lockfile import Lock
from tests.conftest import ROOT
from tests.extending import extended_by
from tests.extending.activation import EXTENSION as ACTIVATIONS
from tests.extending.activation import STEEP_SWISH
from tests.extending.softmax import EXTENSION as SOFTMAX
from tests.extending.strategy import BestFamily
from tests.support import Net


def _step(name: str) -> EpilogueStep:
    return EpilogueStep(name, body=unary("Relu"), reference=np.maximum, cost=1, functor="ext::Step")


def _family(number: int, name: str, problems: tuple[type[Problem], ...] = ()) -> Family[Any]:
    @dataclass(frozen=True, kw_only=True)
    class Config(KernelConfig):
        pass

    facts = {"number": number, "name": name, "config": Config, "problems": problems}
    family: Family[Any] = type("Other", (Family,), facts)()
    return family


def _op(op_type: str, problem: type[Problem] | None = None) -> FusedOp:
    facts = {"name": op_type.lower(), "op_type": op_type, "problem_type": problem}
    return type("Mine", (FusedOp,), facts)()


def _strategy(name: object) -> BestFamily:
    return type("Other", (BestFamily,), {"name": name})()


def _arch(**facts: float) -> Arch:
    """An architecture with one unusual fact."""
    changed: dict[str, Any] = {"name": "other", "number": 1090, **facts}
    return replace(archs.get(90), **changed)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Each test ends with the tables that it began with."""
    before = [dict(table) for table in (EXTENSIONS, EPILOGUES, FAMILIES)]
    yield
    assert [dict(table) for table in (EXTENSIONS, EPILOGUES, FAMILIES)] == before


# --- registering ----------------------------------------------------------------------------------


def test_all_parts_are_added_and_removed() -> None:
    extension = Extension(name="mine", epilogues=(_step("A"),), families=(_family(1000, "fma"),))
    with extended_by(extension):
        assert EPILOGUES.owner("A") == "mine"
        assert FAMILIES[1000].name == "fma"
    assert "A" not in EPILOGUES


def test_the_same_extension_twice_is_harmless() -> None:
    extension = Extension(name="mine", epilogues=(_step("A"),))
    with extended_by(extension):
        register(extension)
        assert [name for name in EPILOGUES if EPILOGUES.owner(name)] == ["A"]


def test_threads_register_it_once() -> None:
    mine = Extension(name="mine", epilogues=tuple(_step(f"S{i}") for i in range(50)))
    errors: list[InputError] = []

    def add() -> None:
        try:
            register(mine)
        except InputError as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            threads = [threading.Thread(target=add) for _ in range(8)]
            for each in (*(t.start for t in threads), *(t.join for t in threads)):
                each()
            unregister(mine)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_two_extensions_of_one_name_are_refused() -> None:
    mine, other = (Extension(name="mine", epilogues=(_step(name),)) for name in "AB")
    with extended_by(mine), pytest.raises(InputError, match="name mine, with A and with B"):
        register(other)
    with pytest.raises(InputError, match="mine is not registered"):
        unregister(Extension(name="mine"))


THEIRS = Extension(name="theirs", epilogues=(_step("A"),), families=(_family(1007, "fma"),))


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"name": "no name"}, "letters, digits and underscores are expected"),
        ({"epilogues": (_step("A"),)}, "epilogue step A has the name A of .* of extension theirs"),
        ({"epilogues": (_step("RELU"),)}, "would not tell it from Relu. Give it another name"),
        ({"epilogues": (_step("Relu"),)}, "the name Relu of onnxbolt's own Relu"),
        (
            {"families": (_family(1007, "other"),)},
            "kernel family other has the number 1007 of kernel family fma of extension theirs",
        ),
        ({"families": (_family(1008, "fma"),)}, "has the name fma of kernel family fma of ext"),
        ({"families": (_family(1008, "gemm2x"),)}, "the type_name Gemm2x of onnxbolt's own gemm"),
        ({"families": (_family(999, "low"),)}, "number of kernel family low 999: an integer from"),
        ({"families": (_family(1, "low"),)}, "number of kernel family low 1: an integer from 1000"),
        ({"families": (_family(1008, "a b"),)}, "letters, digits and underscores are expected"),
        ({"ops": (_op("FusedGemm_Mine"),)}, "begin as FusedGemm_Mine, .* own gemm as FusedGemm"),
        (
            {"ops": (_op("Fused"), _op("Fused_Gemm"))},
            "begin as Fused_Gemm, .* extension mine as Fused:",
        ),
        ({"ops": (FusedOp(),)}, "object has no attribute 'op_type'"),
        ({"strategies": (BestFamily,)}, "strategy best_family is a class: give an object"),
        ({"strategies": (_strategy("a b"),)}, "strategy 'a b': letters, digits and underscores"),
        ({"strategies": (_strategy(3),)}, "strategy 3: letters, digits and underscores"),
        ({"archs": (_arch(bandwidth=math.nan),)}, "are larger than zero and finite"),
        ({"archs": (_arch(l2_bandwidth=math.inf),)}, "are larger than zero and finite"),
        ({"include_dirs": (Path("/nowhere"),)}, "include folder /nowhere is none"),
        ({"sources": (Path("/nowhere/a.cc"),)}, "/nowhere/a.cc is no C"),
    ],
)
def test_an_extension_that_does_not_fit_is_refused_whole(parts: dict[str, Any], what: str) -> None:
    given = {"name": "mine", "epilogues": (_step("First"),), **parts}
    with extended_by(THEIRS):
        with pytest.raises(InputError, match=f"extension .*{what}"):
            register(Extension(**given))
        assert "mine" not in EXTENSIONS
        assert "First" not in EPILOGUES


def test_a_family_that_would_be_chosen_for_an_op_of_another_kind_is_refused() -> None:
    """Planning asks for the problem alone, and a subclass of a problem is solved as well."""

    class Scaled(GemmProblem):
        pass

    scaled = _op("Scaled", Scaled)
    with pytest.raises(
        InputError, match=r"family gemm_2x solves a Scaled, .* of its kinds .scaled"
    ):
        register(Extension(name="mine", ops=(scaled,)))
    assert "scaled" not in OPS
    other = _family(1008, "other", (GemmProblem,))
    with pytest.raises(InputError, match=r"family other solves a GemmProblem, .* fused op gemm"):
        register(Extension(name="mine", families=(other,)))
    assert 1008 not in FAMILIES


@pytest.mark.parametrize(
    "parts",
    [
        {"epilogues": _step("A")},
        {"epilogues": ["A"]},
        {"families": (Family,)},
        {"ops": (_step("A"),)},
        {"strategies": (object(),)},
        {"include_dirs": ("include",)},
    ],
)
def test_parts_that_hold_other_things_are_refused(parts: dict[str, Any]) -> None:
    (part,) = parts
    with pytest.raises(InputError, match=f"extension mine: {part} is .*give a tuple of objects"):
        Extension(name="mine", **parts)


def _with_header(folder: Path, name: str, text: str = "int x;") -> Extension:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return Extension(name=folder.name, include_dirs=(folder,))


def test_a_header_belongs_to_one_side(tmp_path: Path) -> None:
    theirs = _with_header(tmp_path / "theirs", "math.h")
    mine = _with_header(tmp_path / "mine", "math.h")
    with extended_by(theirs), pytest.raises(InputError, match=r"mine: .*math.h .*extension theirs"):
        register(mine)
    own = _with_header(tmp_path / "own", "runtime/kernel.h")
    with pytest.raises(InputError, match=r"runtime/kernel.h is one of onnxbolt's own"):
        register(own)


def test_a_header_is_one_file(tmp_path: Path) -> None:
    folders = tuple(tmp_path / name for name in ("a", "b"))
    for folder in folders:
        _with_header(folder, "mine/math.h", f"// {folder}")
    with pytest.raises(InputError, match=r"its header mine/math.h is both .*a/mine.* and .*b/mine"):
        register(Extension(name="mine", include_dirs=folders))
    with pytest.raises(InputError, match=r"mine/math.h is both"):
        register(Extension(name="mine", include_dirs=(folders[0], folders[0])))


def test_links_to_folders_above_end(tmp_path: Path) -> None:
    """Each of them doubles the folders at every level if it is followed."""
    mine = _with_header(tmp_path / "mine", "mine/a.h")
    for name in ("x", "y", "mine/z"):
        (tmp_path / "mine" / name).symlink_to(tmp_path / "mine")
    with extended_by(mine):
        assert list(EXTENSIONS["mine"].headers) == ["mine/a.h"]


def test_a_header_of_cutlass_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"header cute/tensor.hpp would hide one of CUTLASS"):
        register(_with_header(tmp_path / "mine", "cute/tensor.hpp"))


def test_files_are_texts_and_given_once(tmp_path: Path) -> None:
    mine = _with_header(tmp_path / "mine", "mine.h")
    (tmp_path / "mine" / "mine.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"mine.bin cannot be read as text .*keep it out of"):
        register(mine)
    (tmp_path / "mine.cc").write_text("int x;")
    with pytest.raises(InputError, match=r"source .*mine.cc is given twice"):
        register(Extension(name="other", sources=(tmp_path / "mine.cc",) * 2))


def test_paths_are_those_of_the_directory_at_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_header(tmp_path / "include", "mine.h")
    (tmp_path / "mine.cc").write_text("int x;")
    monkeypatch.chdir(tmp_path)
    relative = Extension(name="mine", include_dirs=(Path("include"),), sources=(Path("mine.cc"),))
    with extended_by(relative):
        monkeypatch.chdir("/")
        assert EXTENSIONS["mine"].include_dirs == (tmp_path / "include",)
        assert EXTENSIONS["mine"].texts == ["int x;", "int x;"]


# --- digests --------------------------------------------------------------------------------------


def test_the_digest_covers_an_extensions_files(tmp_path: Path) -> None:
    digests = []
    for text in ("int x;", "int  x;  // one", "int y;"):
        with extended_by(_with_header(tmp_path / "mine", "mine.h", text)):
            extensions_digest = kernel_sources_digest(["mine"])
            assert present_sources_digest() == extensions_digest
            assert {extensions_digest, kernel_sources_digest()} <= valid_digests()
            digests.append(extensions_digest)
        (tmp_path / "mine").rename(tmp_path / f"{len(digests)}")
    assert len({kernel_sources_digest(), *digests}) == 3
    assert digests[0] == digests[1]


def test_the_digest_is_of_the_files_as_they_are(tmp_path: Path) -> None:
    with extended_by(_with_header(tmp_path / "mine", "mine.h", "int x;")):
        before = kernel_sources_digest(["mine"])
        (tmp_path / "mine" / "mine.h").write_text("int y;")
        assert kernel_sources_digest(["mine"]) != before


# --- entry points ---------------------------------------------------------------------------------


@pytest.fixture
def installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Path]]:
    """Puts a package with an entry point on the path: its value, and its module's text."""

    def install(value: str, text: str) -> Path:
        site = tmp_path / "site"
        info = site / "their_package-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{names.EXTENSIONS}]\ntheirs = {value}\n")
        (site / "their_module.py").write_text(text)
        monkeypatch.syspath_prepend(site)
        return site

    load.cache_clear()
    yield install
    sys.modules.pop("their_module", None)
    load.cache_clear()


FINE = "from tests.extending.activation import EXTENSION\n"


def test_entry_points_are_loaded_where_a_model_is_optimized(
    installed: Callable[[str, str], Path], tmp_path: Path
) -> None:
    installed("their_module:EXTENSION", FINE)
    report = _optimize(tmp_path / "out.onnx")
    try:
        assert [STEEP_SWISH.name in node.op for node in report.fused] == [True]
    finally:
        unregister(ACTIVATIONS)


@pytest.mark.parametrize(
    ("value", "text", "what"),
    [
        ("their_module:EXTENSION", "raise OSError('no licence')", "OSError: no licence"),
        ("their_module:EXTENSION", "raise SystemExit(0)", "cannot be used: SystemExit: 0. Mend"),
        ("their_module:EXTENSION", "raise OSError('a\\nb')", "OSError: a b. Mend"),
        (
            "their_module:EXTENSION",
            "from onnxbolt.extensions import load\nload()\nEXTENSION = None",
            "AttributeError: partially initialized module 'their_module'",
        ),
        ("their_module:EXTENSION", "", "AttributeError: module 'their_module' has no attr"),
        ("their_missing:EXTENSION", "", "No module named 'their_missing'"),
        ("their_module:EXTENSION", "EXTENSION = 1", "it is a int and no Extension"),
        (
            "their_module:EXTENSION",
            "from onnxbolt.extensions import Extension\nEXTENSION = Extension(name='a b')",
            "letters, digits and underscores",
        ),
    ],
)
@pytest.mark.parametrize("command", ["optimize", "inspect", "build", "verify", "cache"])
def test_a_broken_entry_point_is_one_error_that_names_its_package(
    value: str,
    text: str,
    what: str,
    command: str,
    installed: Callable[[str, str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed(value, text)
    path, out = str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")
    onnx.save(_source(), path)
    arguments = {
        "optimize": [path, out],
        "inspect": [path],
        "build": [path],
        "verify": [path, path],
        "cache": ["list"],
    }
    assert main([command, *arguments[command]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the extension theirs of their_package (their_")
    assert what in line
    assert "Mend or uninstall that package" in line
    assert not Path(out).exists()


def test_the_command_line_finds_extensions_of_installed_packages(
    installed: Callable[[str, str], Path], tmp_path: Path
) -> None:
    site = installed("their_module:EXTENSION", FINE)
    out = tmp_path / "out.onnx"
    with extended_by(ACTIVATIONS):
        _optimize(out)
    command = [sys.executable, "-m", "onnxbolt", "inspect", str(out)]
    for path, code, text in ((ROOT, 1, "activations, which is not"), (site, 0, "FusedGemm_Bias_S")):
        environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert done.returncode == code
        assert text in done.stdout + done.stderr


# --- models that name extensions ------------------------------------------------------------------


def _source() -> onnx.ModelProto:
    net = Net({"x": (512, 128)})
    product = net.linear("x", 128, 256)
    return net.model(
        net.node("Mul", product, net.node("Sigmoid", net.node("Mul", product, net.const(1.5))))
    )


def _optimize(out: Path, **options: Any) -> onnxbolt.Report:
    chosen: dict[str, Any] = {"archs": "sm_80", "library": False, "verify": False} | options
    return onnxbolt.optimize(_source(), out, **chosen)


def _named(model: onnx.ModelProto) -> str | None:
    return {entry.key: entry.value for entry in model.metadata_props}.get(names.EXTENSIONS)


def test_a_model_names_the_extensions_that_its_nodes_come_from(tmp_path: Path) -> None:
    with extended_by(ACTIVATIONS, THEIRS):
        _optimize(tmp_path / "out.onnx")
        manifest = manifest_of_model(onnx.load(tmp_path / "out.onnx"))
    assert _named(onnx.load(tmp_path / "out.onnx")) == ACTIVATIONS.name
    assert manifest.extensions == (ACTIVATIONS.name,)


def test_models_without_extensions_stay_as_they_are(tmp_path: Path) -> None:
    _optimize(tmp_path / "before.onnx", lock=tmp_path / "before.lock")
    with extended_by(_with_header(tmp_path / "unused", "unused.h")):
        _optimize(tmp_path / "after.onnx", lock=tmp_path / "after.lock")
        _optimize(tmp_path / "again.onnx", lock=tmp_path / "before.lock", frozen=True)
        names = [unit.name for unit in units(manifest_of_model(onnx.load(tmp_path / "after.onnx")))]
    before = (tmp_path / "before.onnx").read_bytes()
    assert (tmp_path / "after.onnx").read_bytes() == before
    assert (tmp_path / "again.onnx").read_bytes() == before
    assert (tmp_path / "after.lock").read_text() == (tmp_path / "before.lock").read_text()
    assert "unused.cc" not in names


def test_sources_are_units_of_the_libraries_that_need_them(tmp_path: Path) -> None:
    source = tmp_path / "mine.cc"
    source.write_text("int mine;")
    added = replace(ACTIVATIONS, sources=(source,))
    with extended_by(added):
        _optimize(tmp_path / "out.onnx")
        manifest = manifest_of_model(onnx.load(tmp_path / "out.onnx"))
        (unit,) = [unit for unit in units(manifest) if unit.name == "mine.cc"]
    assert unit.text == "int mine;"
    assert unit.include_dirs == added.include_dirs
    source.write_text("int yours;")
    with extended_by(added), pytest.raises(InputError, match="or of activations, whose"):
        build_for(tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("../evil", "an extension that none can be"),
        ("", "an extension that none can be"),
        ("activations,missing", "needs the extension missing, which is not installed"),
        ("theirs", "does not name the extensions that its nodes come from"),
        (None, "does not name the extensions that its nodes come from"),
    ],
)
def test_what_a_model_says_of_extensions_is_checked(
    value: str | None, what: str, tmp_path: Path
) -> None:
    with extended_by(ACTIVATIONS, THEIRS):
        _optimize(tmp_path / "out.onnx")
        model = onnx.load(tmp_path / "out.onnx")
        onnx.helper.set_model_props(
            model,
            {e.key: e.value for e in model.metadata_props if e.key != names.EXTENSIONS}
            | ({names.EXTENSIONS: value} if value is not None else {}),
        )
        with pytest.raises(InputError, match=what):
            manifest_of_model(model)


def test_build_finds_the_extension_of_an_installed_package(
    installed: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, built = tmp_path / "out.onnx", []

    def build(manifest: Manifest, path: Path, progress: object) -> None:
        built.append(manifest.extensions)
        path.write_bytes(b"")

    with extended_by(ACTIVATIONS):
        _optimize(out)
    assert main(["build", str(out)]) == 1
    load.cache_clear()
    installed("their_module:EXTENSION", FINE)
    monkeypatch.setattr(library, "build", build)
    try:
        assert main(["build", str(out)]) == 0
    finally:
        unregister(ACTIVATIONS)
    assert built == [("activations",)]


def test_a_model_without_its_extension_is_one_error(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    with extended_by(ACTIVATIONS):
        _optimize(out)
    what = "the model needs the extension activations, which is not installed"
    for use in (lambda: inspect_model(onnx.load(out)), lambda: build_for(out)):
        with pytest.raises(InputError, match=what):
            use()


def test_a_lock_file_of_another_version_of_an_extension_is_refused(tmp_path: Path) -> None:
    include, lock = tmp_path / "include", tmp_path / "model.lock"
    shutil.copytree(ACTIVATIONS.include_dirs[0], include)
    copied = replace(ACTIVATIONS, include_dirs=(include,))
    with extended_by(copied):
        _optimize(tmp_path / "out.onnx", lock=lock)
    (include / "added.h").write_text("int added;")
    with extended_by(copied):
        with pytest.raises(FrozenError, match="with the extensions activations, whose kernels dif"):
            _optimize(tmp_path / "out.onnx", lock=lock, frozen=True)
        _optimize(tmp_path / "out.onnx", lock=lock)
        _optimize(tmp_path / "out.onnx", lock=lock, frozen=True)


def test_deployment_loads_no_extension(
    installed: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with extended_by(ACTIVATIONS):
        _optimize(tmp_path / "out.onnx")
    installed("their_module:EXTENSION", "raise OSError('loaded')")
    with contextlib.suppress(LibraryError), warnings.catch_warnings():  # there is no library
        warnings.simplefilter("ignore", onnxbolt.OnnxboltWarning)
        onnxbolt.session_options(tmp_path / "out.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "out.onnx", providers=["CPUExecutionProvider"]
    )
    assert session.run(None, {"x": np.zeros((512, 128), np.float32)})[0].shape == (512, 256)
    assert "their_module" not in sys.modules


def test_the_order_of_registration_changes_nothing(tmp_path: Path) -> None:
    net = Net({"x": (512, 128)})
    y = net.linear("x", 128, 256)
    y = net.node("Mul", y, net.node("Sigmoid", net.node("Mul", y, net.const(1.5))))
    y = net.node("Softmax", net.node("Mul", net.const(0.125), y), axis=-1)
    model = net.model(net.linear(y, 256, 8))
    written: list[bytes] = []
    for extensions in ((ACTIVATIONS, SOFTMAX, THEIRS), (THEIRS, SOFTMAX, ACTIVATIONS)):
        out, lock = (tmp_path / f"{len(written)}.{end}" for end in ("onnx", "lock"))
        with extended_by(*extensions):
            onnxbolt.optimize(model, out, archs="sm_80", lock=lock, library=False, verify=False)
        assert _named(onnx.load(out)) == "activations,softmax"
        written.append(out.read_bytes() + lock.read_bytes())
    assert written[0] == written[1]


def test_a_lock_file_names_its_extensions(tmp_path: Path) -> None:
    lock = tmp_path / "model.lock"
    with extended_by(ACTIVATIONS):
        _optimize(tmp_path / "out.onnx", lock=lock)
        assert Lock.read(lock).extensions == (ACTIVATIONS.name,)
        _optimize(tmp_path / "again.onnx", lock=lock, frozen=True)
    assert '"extensions": ["activations"]' in lock.read_text()
    with pytest.raises(InputError, match=r"model.lock needs the extension activations"):
        Lock.read(lock)
    lock.write_text(lock.read_text().replace('["activations"]', '[["activations"]]'))
    with pytest.raises(InputError, match="is not a lock file, or damaged"):
        Lock.read(lock)


def test_a_row_of_a_family_that_is_not_installed_says_so() -> None:
    row = only("elementwise", 80).row()
    row[3] = 1000
    with pytest.raises(ValueError, match="no kernel family 1000; it belongs to an extension"):
        config_from(row)
