"""The lock file: every decision comes back, lines stay in their places, and what cannot be read
is one clear error."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.families import KernelConfig, named
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.measurements.records import Machine
from onnxbolt.measurements.timings import Choice, Comparison, Cut, Timings
from onnxbolt.options import Options
from onnxbolt.problems import GemmProblem
from onnxbolt.tune import lockfile
from onnxbolt.tune.lockfile import SCHEMA, Lock, open_for, shapes_of
from onnxbolt.version import __version__
from tests.tune.fakes import CONV

MACHINE = Machine("NVIDIA H200", 90, 700, "13.0", "4.2.0", "t0")
GEMM = GemmProblem(1024, 768, 3072, DType.F16, DType.F32, ("Bias",))


def config(stages: int, arch: int = 90) -> KernelConfig:
    return Gemm2xConfig(
        arch=arch,
        tile=(128, 128, 32),
        warp=(64, 64, 32),
        instruction=(16, 8, 16),
        stages=stages,
    )


CONV_2X = Conv2xConfig(
    arch=90,
    tile=(128, 128, 32),
    warp=(64, 64, 32),
    instruction=(16, 8, 16),
    stages=2,
    walk=Walk.OPTIMIZED,
)
USED = Timings(
    {
        (GEMM, 90): Choice(config(3), 12.5, 0.125),
        (CONV, 90): Choice(CONV_2X, 7.0),
        (GEMM, 80): Choice(config(4, 80), 30.0, measured=False),
    },
    {
        "aa": Comparison(10.0, 0.1, 20.0, 0.2, region="sm_90 2 fused nodes"),
        "bb": Comparison(9.9, 0.0, 10.0, 0.0, measured=False),
    },
    MACHINE,
    cuts={"cc": Cut(2, "gemm 1024x64-16x256, f16")},
)
LOCK = Lock().updated(USED, Options(), ["sm_90a", "sm_80"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    LOCK.write(tmp_path / "onnxbolt.lock")
    return tmp_path / "onnxbolt.lock"


def test_everything_comes_back(path: Path) -> None:
    lock = Lock.read(path)
    assert lock == LOCK
    assert lock.timings().choices == USED.choices
    assert {key: found.fused for key, found in lock.timings().comparisons.items()} == {
        "aa": True,
        "bb": True,
    }
    assert lock.timings().frozen
    assert lock.timings().cuts == USED.cuts
    assert (lock.archs, lock.machines) == (("sm_90a", "sm_80"), (MACHINE,))


def test_not_frozen_only_measurements_are_used(path: Path) -> None:
    timings = Lock.read(path).timings(frozen=False)
    assert not timings.frozen
    assert set(timings.choices) == {(GEMM, 90), (CONV, 90)}
    assert set(timings.comparisons) == {"aa"}
    assert not timings.cuts  # they follow from the measurements


def test_a_decision_stands_whatever_rounding_does_to_its_times(tmp_path: Path) -> None:
    close = Timings(comparisons={"k": Comparison(5.0001, 0.0, 5.0002, 0.0, measured=False)})
    Lock().updated(close, Options(), ["sm_80"]).write(tmp_path / "l")
    comparison = Lock.read(tmp_path / "l").timings().comparisons["k"]
    assert comparison.ours_us == comparison.ort_us
    assert comparison.fused


def test_a_decision_keeps_its_reason(tmp_path: Path) -> None:
    slower = Comparison(
        1.0, 0.0, 2.0, 0.0, decided=False, region="r", reason="the whole model is slower with it"
    )
    Lock().updated(Timings(comparisons={"k": slower}), Options(), ["sm_80"]).write(tmp_path / "l")
    assert Lock.read(tmp_path / "l").timings().comparisons["k"] == slower


def test_the_text_is_sorted_json_and_independent_of_the_order_of_decisions() -> None:
    backwards = Timings(
        dict(reversed(USED.choices.items())),
        dict(reversed(USED.comparisons.items())),
        MACHINE,
        cuts=USED.cuts,
    )
    assert Lock().updated(backwards, Options(), ["sm_90a", "sm_80"]).text() == LOCK.text()
    values = json.loads(LOCK.text())
    assert list(values) == sorted(values)
    assert all(list(row) == sorted(row) for row in (*values["choices"], *values["regions"]))
    assert values["schema"] == SCHEMA


def test_a_choice_that_changes_is_one_line_that_changes() -> None:
    changed = dataclasses.replace(
        USED, choices={**USED.choices, (GEMM, 90): Choice(config(5), 11.0)}
    )
    before, after = (
        LOCK.text().splitlines(),
        LOCK.updated(changed, Options(), ["sm_90a", "sm_80"]).text().splitlines(),
    )
    assert len(before) == len(after)
    (line,) = [new for old, new in zip(before, after, strict=True) if old != new]
    assert "gemm 1024x768x3072" in line


def test_an_update_keeps_what_other_models_locked_and_times_of_choices_that_stay() -> None:
    slower = Timings({(GEMM, 90): Choice(config(3), 13.0), (GEMM, 80): Choice(config(4, 80), 31.0)})
    lock = LOCK.updated(slower, Options(), ["sm_90a"])
    assert lock.choices[GEMM, 90].us == 12.5
    assert lock.choices[GEMM, 80] == Choice(config(4, 80), 31.0)  # was predicted, is measured
    assert lock.choices[CONV, 90] == USED.choices[CONV, 90]
    assert lock.comparisons == LOCK.comparisons
    assert lock.machines == (MACHINE,)


def test_an_update_drops_decisions_about_other_kernels() -> None:
    old = dataclasses.replace(LOCK, kernels="another digest")
    lock = old.updated(Timings({(CONV, 90): Choice(CONV_2X, 7.0)}), Options(), ["sm_90a"])
    assert set(lock.choices) == {(CONV, 90)}
    assert lock.comparisons == {}
    assert lock.kernels == LOCK.kernels


def test_without_a_lock_file_no_source_of_a_kernel_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read() -> str:
        raise AssertionError("kernel sources are read")

    monkeypatch.setattr(lockfile, "kernel_sources_digest", read)
    assert open_for(Options()).same_kernels


def damaged(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("}", ""),
        ('"choices"', '"chosen"'),
        ('"sm_90a"', '"sm_9"'),
        ("GemmProblem", "Problem"),
        ('"arch": 80', '"arch": 90'),
        ("[80, ", "["),
        ('"dtype": "f16"', '"dtype": "f8"'),
        ('"gpu"', '"card"'),
        ('"ours_us": 10.0', '"ours_us": "fast"'),
        ('"layers": 2', '"layers": 0'),
    ],
)
def test_a_damaged_file_is_one_clear_error(path: Path, old: str, new: str) -> None:
    path.write_text(damaged(path.read_text(), old, new))
    with pytest.raises(InputError, match=r"onnxbolt\.lock is not a lock file, or damaged"):
        Lock.read(path)


def spoiled(path: Path, part: str, *keys: str | int, value: object) -> None:
    """The file with one value of the first entry of a part replaced."""
    values = json.loads(path.read_text())
    place = values[part][0]
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("value", [None, -1, 2**70, 1.5, math.inf, "x", {}])
@pytest.mark.parametrize(
    ("part", "keys"),
    [
        ("choices", ("config", 4)),
        ("choices", ("config", 13)),
        ("choices", ("config",)),
        ("choices", ("problem",)),
        ("choices", ("problem", "n")),
        ("choices", ("problem", "chain")),
        ("choices", ("problem", "inner")),
        ("choices", ("kind",)),
        ("regions", ("fused",)),
        ("cuts", ("layers",)),
    ],
)
def test_a_damaged_value_is_one_clear_error_that_names_the_entry(
    path: Path, part: str, keys: tuple[str | int, ...], value: object
) -> None:
    spoiled(path, part, *keys, value=value)
    with pytest.raises(
        InputError, match=rf"onnxbolt\.lock is not a lock file, or damaged \(entry 1 of {part}: "
    ):
        Lock.read(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 91),
        (3, 99),
        (3, 27),  # a family that is gone
        (3, named("conv_2x").number),
        (4, 0),
        (7, 0),
        (7, 48),
        (14, 0),
        (15, 0),
        (18, 7),
        (22, 0),
    ],
)
def test_a_configuration_that_no_kernel_has_is_refused(path: Path, place: int, value: int) -> None:
    values = json.loads(path.read_text())
    row = next(row for row in values["choices"] if row["kind"] == "GemmProblem")
    row["config"][place] = value
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"damaged \(entry \d of choices: "):
        Lock.read(path)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({4: 64, 5: 66, 19: 8}, id="columns that TMA cannot store"),
        pytest.param({6: 1}, id="a k-block narrower than a copy"),
        pytest.param({4: 128, 5: 256, 6: 256}, id="no room for a stage"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(path: Path, sizes: dict[int, int]) -> None:
    """They take no endless time, either."""
    values = json.loads(path.read_text())
    row = next(row for row in values["choices"] if row["kind"] == "GemmProblem")
    row["problem"]["out"], row["arch"] = "f16", 90
    row["config"] = named("gemm_sm90").candidates(GEMM, get(90))[0].row()
    path.write_text(json.dumps(values))
    Lock.read(path)
    for place, size in sizes.items():
        row["config"][place] = size
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"damaged \(entry \d of choices: "):
        Lock.read(path)


@pytest.mark.parametrize("kind", ["GemmNormProblem", "GemmMomentsProblem"])
def test_problems_that_are_gone_are_one_clear_error(path: Path, kind: str) -> None:
    path.write_text(damaged(path.read_text(), "GemmProblem", kind))
    with pytest.raises(
        InputError,
        match=rf"choices: ValueError: no kernel family solves a {kind}\): .*delete it and run",
    ):
        Lock.read(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '"x"', "1", "Infinity"])
def test_json_that_is_no_lock_is_one_clear_error(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InputError, match=r"onnxbolt\.lock is not a lock file, or damaged"):
        Lock.read(path)


def test_an_older_schema_is_one_clear_error(path: Path) -> None:
    path.write_text(damaged(path.read_text(), f'"schema": {SCHEMA}', '"schema": 1'))
    with pytest.raises(InputError, match=r"schema version 1.*delete the file"):
        Lock.read(path)


def test_the_shapes_of_every_model_are_recorded(tmp_path: Path) -> None:
    sized = Options(
        lock=tmp_path / "l", min_shapes={"x": (1, 3)}, max_shapes={"x": (64, 3), "a": (2,)}
    )
    assert shapes_of(sized) == "--min-shapes x:[1,3] --max-shapes a:[2],x:[64,3]"
    lock = LOCK.updated(USED, sized, ["sm_90a", "sm_80"])
    assert lock.shapes == ("", shapes_of(sized))
    lock.write(tmp_path / "l")
    frozen = dataclasses.replace(sized, frozen=True)
    assert open_for(frozen) == lock
    assert open_for(Options(lock=tmp_path / "l", frozen=True)) == lock
    other = dataclasses.replace(frozen, max_shapes={"x": (32, 3)})
    with pytest.raises(
        FrozenError,
        match=r"no options for shapes or --min-shapes x:\[1,3\].*but this run has .*\[32,3\]",
    ):
        open_for(other)
    assert open_for(dataclasses.replace(other, frozen=False)) == lock


def test_an_unknown_schema_is_one_clear_error(path: Path) -> None:
    path.write_text(damaged(path.read_text(), f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    with pytest.raises(InputError, match=rf"schema version {SCHEMA + 1}.*update onnxbolt"):
        Lock.read(path)


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot be written"):
        LOCK.write(tmp_path / "nowhere" / "onnxbolt.lock")


def test_without_a_lock_nothing_is_known(tmp_path: Path) -> None:
    for lock in (None, tmp_path / "new.lock"):
        assert open_for(Options(lock=lock)).timings(frozen=False) == Timings()


def test_frozen_needs_the_file(tmp_path: Path) -> None:
    with pytest.raises(FrozenError, match=r"new\.lock does not exist; run"):
        open_for(Options(lock=tmp_path / "new.lock", frozen=True))
    with pytest.raises(InputError, match="frozen=True needs lock"):
        Options(frozen=True)


def test_another_precision_is_an_error(path: Path) -> None:
    with pytest.raises(InputError, match="precision='fp16', not keep"):
        open_for(Options(lock=path, precision="keep"))


def test_other_kernels_are_an_error_when_frozen_and_ignored_with_a_warning_else(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataclasses.replace(LOCK, kernels="another digest").write(path)
    caplog.set_level("WARNING", "onnxbolt")
    with pytest.raises(FrozenError, match="whose kernels differ"):
        open_for(Options(lock=path, frozen=True))
    assert open_for(Options(lock=path)).choices == {}
    assert "its choices are not used" in caplog.text


def test_another_version_with_the_same_kernels_is_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "onnxbolt")
    dataclasses.replace(LOCK, version="0.0.1").write(path)
    assert open_for(Options(lock=path, frozen=True)).choices == LOCK.choices
    assert f"written by onnxbolt 0.0.1, this is {__version__}" in caplog.text
