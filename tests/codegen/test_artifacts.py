"""The cache of compiled objects, with a compiler that is a shell script: it counts, fails on
demand, and is quick."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from onnxbolt.codegen import artifacts, nvcc
from onnxbolt.codegen.artifacts import (
    Unit,
    compile_each,
    compile_units,
    link,
    text_digest,
    unit_key,
)
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.errors import BuildError

SCRIPT = """#!/bin/sh
# called as: nvcc <flags> -c <source> -o <object>
echo "$@" >> {calls}
while [ $# -gt 1 ]; do
  [ "$1" = -c ] && source=$2
  [ "$1" = -o ] && object=$2
  shift
done
if [ -n "$source" ]; then
  grep -q WRONG "$source" && echo "$source(1): error: identifier WRONG is undefined" && exit 2
  if grep -q FULL "$source"; then
    echo "$source(1): fatal error: No space left on device"
    touch "$object"
    exit 1
  fi
  echo "object of $(cat "$source")" > "$object"
else
  echo linked > "$object"
fi
"""


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "the cache"))
    compiler = tmp_path / "nvcc"
    compiler.write_text(SCRIPT.format(calls=tmp_path / "calls"))
    compiler.chmod(0o755)
    version = tmp_path / "cutlass" / "include" / "cutlass" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text("4.2.0")
    return Toolchain(compiler, "13.0.88", tmp_path / "cutlass")


def calls(toolchain: Toolchain) -> int:
    log = toolchain.nvcc.with_name("calls")
    return len(log.read_text().splitlines()) if log.exists() else 0


UNITS = [Unit("a.cu", "int a;", 80), Unit("b.cu", "int b;", 90), Unit("c.cc", "int c;")]


def test_an_object_belongs_to_the_headers_that_it_includes(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "custom_ops"
    texts = {
        "a.h": '#include "sm90/b.h"\n',
        "sm90/b.h": '#  include "a.h"\n#include "cutlass/array.h"\n',
        "c.h": "",
    }

    def key(**changed: str) -> str:
        for name, text in texts.items():
            (headers / name).parent.mkdir(parents=True, exist_ok=True)
            (headers / name).write_text(text + changed.get(Path(name).stem, ""))
        artifacts._headers.cache_clear()
        return unit_key(Unit("unit.cu", '#include <vector>\n#include "a.h"\n', 90), toolchain)

    monkeypatch.setattr(artifacts, "resource_dir", lambda _: headers)
    before = key()
    assert key(c="int c;") == before
    assert len({before, key(a="int a;"), key(b="int b;")}) == 3


def test_installations_share_objects(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for place in ("one", "other"):
        headers, cutlass = tmp_path / place / "custom_ops", tmp_path / place / "cutlass"
        shutil.copytree(toolchain.cutlass, cutlass)
        headers.mkdir()
        (headers / "a.h").write_text("int a;")
        monkeypatch.setattr(artifacts, "resource_dir", lambda _, headers=headers: headers)
        monkeypatch.setattr(nvcc, "resource_dir", lambda _, headers=headers: headers)
        artifacts._headers.cache_clear()
        unit = Unit("unit.cu", '#include "a.h"\n', 90)
        assert str(headers) in " ".join(unit.command(toolchain, "unit.cu", "unit.o"))
        keys.append(unit_key(unit, replace(toolchain, cutlass=cutlass)))
    assert keys[0] == keys[1]


def test_an_object_belongs_to_all_headers_of_its_extensions(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """Also those behind angle brackets, macros and links, and those that change meanwhile."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "include" / "mine").mkdir(parents=True)
    (tmp_path / "include" / "more").symlink_to(tmp_path / "linked")
    unit = Unit("unit.cu", '#include "mine/a.h"\n', 90, (tmp_path / "include",))
    keys = []
    for name, text in {
        "mine/a.h": "#include <mine/b.h>\n#include MINE\n",
        "mine/b.h": "int b;",
        "mine/macro.h": "int c;",
        "more/d.h": "int d;",
        "mine/e.h": '#include "runtime/arch.h"',
    }.items():
        (tmp_path / "include" / name).write_text(text)
        keys.append(unit_key(unit, toolchain))
    assert len(set(keys)) == len(keys)


def test_headers_that_those_of_extensions_include_decide_an_object(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, theirs = tmp_path / "custom_ops", tmp_path / "include"
    own.mkdir()
    theirs.mkdir()
    (theirs / "theirs.h").write_text("#include <own.h>\n")
    monkeypatch.setattr(artifacts, "resource_dir", lambda _: own)
    keys = []
    for text in ("int a;", "int b;"):
        (own / "own.h").write_text(text)
        artifacts._headers.cache_clear()
        keys.append(unit_key(Unit("unit.cu", '#include "theirs.h"\n', 90, (theirs,)), toolchain))
    assert keys[0] != keys[1]


def test_units_are_compiled_once(toolchain: Toolchain) -> None:
    lines: list[str] = []
    objects = compile_units(UNITS, toolchain, lines.append)
    assert [path.read_text() for path in objects] == [f"object of {unit.text}\n" for unit in UNITS]
    assert lines[0] == "compiling 3 translation units"
    assert sorted(line.split()[-1] for line in lines[1:]) == ["a.cu", "b.cu", "c.cc"]
    lines.clear()
    assert compile_units(UNITS, toolchain, lines.append) == objects
    assert (calls(toolchain), lines) == (3, [])


def test_what_decides_the_object_is_in_the_key(toolchain: Toolchain, tmp_path: Path) -> None:
    unit = UNITS[0]
    other_cutlass = tmp_path / "other" / "include" / "cutlass" / "version.h"
    other_cutlass.parent.mkdir(parents=True)
    other_cutlass.write_text("4.3.0")
    variants = [
        (unit, toolchain),
        (replace(unit, text="int d;"), toolchain),
        (replace(unit, arch=86), toolchain),
        (unit, replace(toolchain, version="13.1.2")),
        (unit, replace(toolchain, cutlass=tmp_path / "other")),
    ]
    assert len({compile_units([u], t)[0] for u, t in variants}) == len(variants)
    assert compile_units([replace(unit, name="renamed.cu")], toolchain) == compile_units(
        [unit], toolchain
    )


def test_equal_units_share_an_object(toolchain: Toolchain) -> None:
    first, second = compile_units([UNITS[0], replace(UNITS[0], name="twin.cu")], toolchain)
    assert first == second


def test_failure_says_what_and_where_and_is_remembered(toolchain: Toolchain) -> None:
    units = [*UNITS, Unit("bad.cu", "WRONG", 80)]
    for _ in range(2):
        with pytest.raises(
            BuildError, match=r"bad\.cu does not compile: .*error: identifier WRONG is undefined"
        ) as caught:
            compile_units(units, toolchain)
        assert "identifier WRONG" in caught.value.log
        assert Path(caught.value.source).read_text() == "WRONG"
        assert str(toolchain.nvcc) in caught.value.command
    before = calls(toolchain)
    with pytest.raises(BuildError):
        compile_units([units[-1]], toolchain)
    assert calls(toolchain) == before


def test_full_disk_is_not_remembered(toolchain: Toolchain) -> None:
    for attempt in (1, 2):
        with pytest.raises(
            BuildError, match=r"full\.cu does not compile: .*No space left on device"
        ):
            compile_units([Unit("full.cu", "FULL", 80)], toolchain)
        assert calls(toolchain) == attempt


def test_each_unit_has_its_own_outcome(toolchain: Toolchain) -> None:
    bad, full = Unit("bad.cu", "WRONG", 80), Unit("full.cu", "FULL", 80)
    compile_units(UNITS[:1], toolchain)
    outcomes = compile_each([bad, full, *UNITS], toolchain)
    assert next(outcomes)[0] == UNITS[0]  # the one that the cache had
    found: dict[Unit, Any] = {}
    with pytest.raises(BuildError, match="No space left"):
        found.update(outcomes)
    assert found.keys() == {bad, *UNITS[1:]}  # the failure that is no unit's came behind all others
    found = dict(compile_each([bad, *UNITS], toolchain))
    assert isinstance(found[bad], BuildError)
    assert all(isinstance(found[unit], Path) for unit in UNITS)


def test_a_stop_ends_the_compilers(toolchain: Toolchain) -> None:
    stop = threading.Event()
    toolchain.nvcc.write_text("#!/bin/sh\nexec sleep 60\n")
    threading.Timer(0.5, stop.set).start()
    started = time.monotonic()
    assert list(compile_each(UNITS, toolchain, stop=stop)) == []
    assert time.monotonic() - started < 20
    assert {path.name for path in (toolchain.nvcc.parent / "the cache").iterdir()} <= {
        "objects",
        "compile.lock",
    }


def test_nothing_is_left_beside_the_entries(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(BuildError):
        compile_units([*UNITS, Unit("full.cu", "FULL", 80)], toolchain)
    assert {path.name for path in (tmp_path / "the cache").iterdir()} <= {"objects", "compile.lock"}


def test_builders_at_the_same_time_do_the_work_once(toolchain: Toolchain) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom onnxbolt.codegen.artifacts import Unit,"
        " compile_units\nfrom onnxbolt.codegen.nvcc import Toolchain\nt ="
        f" Toolchain(Path({str(toolchain.nvcc)!r}), '13.0.88',"
        f" Path({str(toolchain.cutlass)!r}))\ncompile_units([Unit(f'{{i}}.cu', f'int i{{i}};', 80)"
        " for i in range(5)], t)"
    )
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(
                lambda _: subprocess.run([sys.executable, "-c", program], check=True), range(3)
            )
        )
    assert calls(toolchain) == 5


def test_waiting_for_another_builder_is_said(toolchain: Toolchain, tmp_path: Path) -> None:
    lines: list[str] = []
    lock = FileLock(tmp_path / "the cache" / "compile.lock")
    Path(lock.lock_file).parent.mkdir()
    with lock, ThreadPoolExecutor(1) as pool:
        built = pool.submit(compile_units, UNITS, toolchain, lines.append)
        while not lines:
            time.sleep(0.01)
        assert "another build" in lines[0]
        lock.release()
        assert len(built.result(timeout=60)) == len(UNITS)


def test_library_appears_whole_or_not_at_all(toolchain: Toolchain, tmp_path: Path) -> None:
    out = tmp_path / "out.so"
    link(compile_units(UNITS, toolchain), out, toolchain)
    assert out.read_text() == "linked\n"
    toolchain.nvcc.write_text(
        "#!/bin/sh\nfor last; do :; done; echo half > $last; echo 'undefined reference to f' >&2;"
        " exit 1\n"
    )
    with pytest.raises(BuildError, match="cannot be linked: undefined reference to f"):
        link([], out, toolchain)
    assert out.read_text() == "linked\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_digest_keeps_names_and_texts_apart() -> None:
    assert (
        text_digest([("a", "bc")])
        != text_digest([("ab", "c")])
        != text_digest([("a", "b"), ("c", "")])
    )
