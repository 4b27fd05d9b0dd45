"""Building candidates with a compiler that is a script: what it does to an instance is in the
instance's tile."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from onnxbolt import library as product
from onnxbolt.codegen import artifacts, cache
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.errors import BuildError
from onnxbolt.families import named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.library import make_manifest
from onnxbolt.tune import library
from onnxbolt.tune.library import Uncompiled, build, compiled, profiler_library

GOOD, WRONG, SPILLS, SERIALIZED, UNNAMED, FULL = 64, 101, 102, 103, 104, 105
SCRIPT = f"""#!{sys.executable}
import pathlib, re, sys
arguments = sys.argv[1:]
output = pathlib.Path(arguments[arguments.index("-o") + 1])
with open({{log!r}}, "a") as log:
    print(*arguments, file=log)
if "-shared" in arguments:
    objects = [pathlib.Path(a).read_text() for a in arguments if a.endswith(".o")]
    output.write_text("library of " + " ".join(objects))
    sys.exit()
spills = (
    "ptxas warning : Registers are spilled to local memory"
    " in function '%s', %d bytes spill stores"
)
serialized = (
    "ptxas info : (C7514) wgmma.mma_async instructions are serialized in function '%s'"
)
text = pathlib.Path(arguments[arguments.index("-c") + 1]).read_text()
for row in re.findall("Config<([^>]*)>", text):
    numbers = row.split(", ")
    mangled = "_ZN6ConfigIJ" + "".join(f"Ll{{{{number}}}}E" for number in numbers) + "EEE"
    match int(numbers[4]):
        case {WRONG}: sys.exit(f"unit.cu(3): error: static assertion failed")
        case {FULL}: sys.exit("fatal error: No space left on device")
        case {SPILLS}: print(spills % (mangled, 16))
        case {SERIALIZED}: print(serialized % mangled)
        case {UNNAMED}: print(spills % ("f", 8))
output.write_text(" ".join(re.findall("Config<[^>]*>", text)))
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    log, compiler = tmp_path / "log", tmp_path / "nvcc"
    compiler.write_text(SCRIPT.format(log=str(log)))
    compiler.chmod(0o755)
    version = tmp_path / "cutlass" / "include" / "cutlass" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n"
    )
    toolchain = Toolchain(compiler, "13.0.88", tmp_path / "cutlass")
    for module in (library, product):
        monkeypatch.setattr(module, "find_toolchain", lambda: toolchain)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})  # the same parts on every machine
    return log


def instance(tile: int, stages: int = 3, family: str = "gemm_2x") -> Instance:
    """`stages` tells those of one tile apart."""
    mma: dict[str, Any] = {
        "tile": (tile, 64, 32),
        "warp": (tile, 64, 32),
        "instruction": (16, 8, 16),
        "stages": stages,
    }
    schedule = Schedule.COOPERATIVE
    fields: dict[str, dict[str, Any]] = {
        "gemm_2x": mma,
        "conv_2x": {**mma, "walk": Walk.OPTIMIZED},
        "gemm_3x": {"tile": (tile, 64, 32 + stages), "cluster": (1, 1), "schedule": schedule},
        "gemm_sm90": {
            "rows": tile,
            "columns": 64,
            "k": 32,
            "stages": stages,
            "schedule": schedule,
            "consumers": 1,
        },
    }
    config = named(family).config(arch=80, **fields[family])
    return Instance(config, DType.F16, DType.F16, ("Bias",))


def row(one: Instance) -> str:
    return "Config<" + ", ".join(map(str, one.config.row())) + ">"


def calls(log: Path, what: str = "") -> int:
    return sum(what in line for line in log.read_text().splitlines()) if log.exists() else 0


def test_instances_share_libraries_and_are_remembered(log: Path) -> None:
    wanted = [instance(GOOD, stages) for stages in range(2, 12)] + [instance(GOOD, 3, "conv_2x")]
    built = dict(build(wanted))
    assert built.keys() == set(wanted)
    # two of five GEMMs, as there are two cores, and the convolution's
    assert len(set(built.values())) == 3
    assert all(
        isinstance(path, Path) and path.read_text().startswith("library of ")
        for path in built.values()
    )
    before = calls(log)
    assert dict(build(reversed(wanted[3:5]))) == {i: built[i] for i in wanted[3:5]}
    assert calls(log) == before


def test_large_sets_are_cut_into_units_of_eight(log: Path) -> None:
    list(build([instance(GOOD, stages) for stages in range(40)]))
    assert calls(log, "-c unit.cu") == 5


def test_no_unit_takes_longer_than_a_core_s_share(log: Path) -> None:
    slow = [instance(GOOD, stages, "gemm_3x") for stages in range(2)]
    quick = [instance(GOOD, stages, "gemm_sm90") for stages in range(4)]
    built = dict(build([*quick, *slow]))
    # 10 s each, of the 12 s that each of two cores has to do
    assert len({built[i] for i in slow}) == 2
    assert len({built[i] for i in quick}) == 1


@pytest.mark.parametrize(
    ("tile", "detail"),
    [
        (WRONG, "static assertion failed"),
        (SPILLS, "spilled to local memory, 16 bytes"),
        (SERIALIZED, "C7514"),
        (UNNAMED, "8 bytes"),
    ],
)
def test_a_bad_instance_costs_itself_alone(log: Path, tile: int, detail: str) -> None:
    good = [instance(GOOD, stages) for stages in range(3, 8)]
    built = dict(build([*good, instance(tile)]))
    assert all(isinstance(built[i], Path) for i in good)
    refused = built[instance(tile)]
    assert isinstance(refused, Uncompiled)
    assert detail in refused.detail
    before = calls(log)
    assert dict(build([instance(tile)])) == {instance(tile): refused}
    assert calls(log) == before


def test_a_full_disk_is_no_instances_fault(log: Path) -> None:
    results = build([instance(FULL), instance(GOOD, 5, "conv_2x")])
    assert next(results)[0] == instance(GOOD, 5, "conv_2x")
    with pytest.raises(BuildError, match="No space left"):
        next(results)


def test_many_cores_link_beside_compiling(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    threads = set[int]()

    def noted(*arguments: Any) -> None:
        threads.add(threading.get_ident())
        artifacts.link(*arguments)

    monkeypatch.setattr("onnxbolt.tune.library.link", noted)
    instances = [instance(GOOD, stages) for stages in range(20)]
    found = dict(build([*instances, instance(WRONG), instance(SPILLS)]))
    assert all(isinstance(found[each], Path) for each in instances)
    assert isinstance(found[instance(WRONG)], Uncompiled)
    assert isinstance(found[instance(SPILLS)], Uncompiled)
    assert threads
    assert threading.get_ident() not in threads


def test_a_library_that_was_deleted_is_linked_again(log: Path) -> None:
    ((_, path),) = build([instance(GOOD)])
    assert isinstance(path, Path)
    path.unlink()
    assert list(build([instance(GOOD)])) == [(instance(GOOD), path)]
    assert calls(log, "-c unit.cu") == 1


def test_stopped_builds_give_no_results(log: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert len(list(build([instance(GOOD), instance(WRONG)], stop=stop))) <= 1


def test_libraries_show_what_the_worker_calls(log: Path) -> None:
    profiler_library(90)
    assert len(list(build([instance(GOOD)]))) == 1
    links = [line for line in log.read_text().splitlines() if "-shared" in line]
    assert all("profiler/exports.map" in line for line in links)
    assert calls(log, "-Xptxas=-warn-spills") == 1 + len(
        list((resource_dir("custom_ops") / "profiler").glob("*.cu"))
    )


def test_a_library_takes_what_was_compiled_as_a_candidate(log: Path, tmp_path: Path) -> None:
    candidates = [instance(GOOD, stages) for stages in range(3, 8)]
    list(build(candidates))
    chosen, unknown = [candidates[0], candidates[1], candidates[4]], instance(GOOD, 9)
    found = compiled([*chosen, unknown])
    assert found.keys() == set(chosen)
    assert len(set(found.values())) == 2  # the first two share a unit
    before = calls(log, "-c unit.cu")
    manifest = make_manifest([], [*chosen, unknown])
    product.build(manifest, tmp_path / "out.so", compiled=found)
    assert calls(log, "-c unit.cu") == before + 1
    linked = (tmp_path / "out.so").read_text()
    assert all(row(one) in linked for one in (*chosen, unknown))


def test_no_kernel_is_linked_twice(log: Path) -> None:
    """A unit that is taken apart leaves kernels that are in two units."""
    first = [instance(GOOD, stages) for stages in (3, 4)]
    list(build(first))
    records = sorted(cache.candidates().glob("*.json"))
    assert len(records) == 2
    for record in records:  # as if each had been compiled with the other
        content = json.loads(record.read_text()) | {
            "kernels": [instance_name(one) for one in first]
        }
        record.write_text(json.dumps(content))
    found = compiled(first)
    assert len(set(found.values())) == 1
    assert all(one.exists() for one in found.values())


def test_versions(log: Path) -> None:
    assert library.cutlass_version(library.profiling_toolchain()) == "4.2.0"
