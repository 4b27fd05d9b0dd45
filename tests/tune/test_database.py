"""The database keeps every measurement, whoever writes at the same time and however a process
ends."""

from __future__ import annotations

import dataclasses
import gzip
import math
import random
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig, named, only
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import GemmProblem
from onnxbolt.tune import merging
from onnxbolt.tune.database import Database
from onnxbolt.tune.schema import SCHEMA

MACHINE = Machine("NVIDIA H200", 90, 700, "13.0", "4.2.0", "t0")
PROBLEM = GemmProblem(1024, 768, 3072, DType.F16, DType.F16, ("Bias",))
KEY = kernel_key(PROBLEM, MACHINE)
SM90 = named("gemm_sm90").candidates(PROBLEM, get(90))[0]


def config(stages: int) -> KernelConfig:
    return Gemm2xConfig(
        arch=90,
        tile=(128, 128, 32),
        warp=(64, 64, 32),
        instruction=(16, 8, 16),
        stages=stages,
    )


def ok(stages: int, us: float, runs: int = 10, key: str = KEY) -> Measurement:
    return Measurement(key, config(stages), Status.OK, us, 0.1, runs, 1e-4, 1980)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.sqlite")


def test_what_was_added_comes_back(database: Database) -> None:
    failed = Measurement(KEY, config(4), Status.CRASHED, detail="signal 11")
    added = [ok(2, 5.0), ok(3, 4.0), failed, Measurement(KEY, None, Status.OK, 6.0)]
    database.add(*added)
    with Database(database.path) as again:
        assert again.measurements(KEY) == added
        assert (again.keys(), len(again)) == ([KEY], 4)
        assert again.tried(KEY) == {config(2), config(3), config(4)}
        assert again.measurements("another") == []
        assert again.best("another") is None


def test_rows_of_fewer_columns_have_defaults_in_the_others(database: Database) -> None:
    """As versions before wrote them."""
    database.add(ok(3, 4.0))
    with sqlite3.connect(database.path) as connection:
        connection.execute("UPDATE measurements SET config = replace(config, ',0,0]', ']')")
    assert database.measurements(KEY) == [ok(3, 4.0)]


def test_a_value_that_is_not_finite_comes_back_as_nan(database: Database) -> None:
    database.add(Measurement(KEY, config(2), Status.WRONG, error=math.inf))
    (measurement,) = database.measurements(KEY)
    assert math.isnan(measurement.error)


def test_best_is_the_fastest_by_the_measurement_of_most_runs(database: Database) -> None:
    database.add(ok(2, 5.0, runs=10), ok(2, 3.0, runs=3), ok(3, 4.5, runs=10))
    best = database.best(KEY)
    assert best is not None
    assert (best.config, best.us) == (config(3), 4.5)  # three runs of the other say less than ten
    database.add(ok(2, 4.0, runs=10))
    best = database.best(KEY)
    assert best is not None
    assert (best.config, best.us) == (config(2), 4.0)  # as many runs, newer


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_configuration_that_ever_failed_is_never_the_best(
    database: Database, status: Status
) -> None:
    database.add(ok(2, 1.0), Measurement(KEY, config(2), status), ok(2, 1.0), ok(3, 9.0))
    best = database.best(KEY)
    assert best is not None
    assert best.config == config(3)
    assert config(2) in database.tried(KEY)


def test_the_default_is_in_the_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    assert Database().path == tmp_path / "cache" / "tuning.sqlite"


def test_clear_by_gpu_by_time_and_all(database: Database) -> None:
    other = kernel_key(PROBLEM, Machine("NVIDIA A100", 80, 400, "13.0", "4.2.0", "t0"))
    database.add(ok(2, 5.0), ok(2, 7.0, key=other), ok(2, 1.0, key="no JSON"))
    assert database.clear(gpu="NVIDIA A100") == 1
    assert database.keys() == sorted([KEY, "no JSON"])
    now = datetime.now(UTC)
    assert database.clear(before=now - timedelta(hours=1)) == 0
    assert database.clear(gpu="NVIDIA H200", before=now + timedelta(hours=1)) == 1
    assert database.clear() == 1
    assert len(database) == 0


# --- files ----------------------------------------------------------------------------------------


def filled(path: Path, count: int, seed: int) -> Database:
    rng = random.Random(seed)
    database = Database(path)
    for _ in range(count):
        database.add(
            ok(
                rng.randint(2, 4),
                rng.uniform(1, 9),
                rng.randint(1, 20),
                rng.choice([KEY, KEY + " ", "é"]),
            )
        )
    return database


def exported(database: Database) -> bytes:
    path = database.path.with_suffix(".jsonl")
    database.export(path)
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(8))
def test_merge_is_commutative_idempotent_and_takes_both_kinds_of_file(
    tmp_path: Path, seed: int
) -> None:
    parts = [filled(tmp_path / f"{i}.sqlite", 5, i) for i in range(3)]
    sources = [part.path for part in parts]
    for part in parts:
        exported(part)
        sources.append(part.path.with_suffix(".jsonl"))
    whole = Database(tmp_path / "whole.sqlite")
    assert sum(whole.merge(part.path) for part in parts) == 15
    order = random.Random(seed).choices(sources, k=12)
    merged = Database(tmp_path / "merged.sqlite")
    for source in [*order, *sources]:
        merged.merge(source)
    assert exported(merged) == exported(whole)
    for key in (KEY, KEY + " ", "é"):
        assert merged.best(key) == whole.best(key)
    assert merged.merge(merged.path) == 0


def test_merge_leaves_the_other_file_as_it_is(tmp_path: Path, database: Database) -> None:
    old = version_1(tmp_path / "old.sqlite")
    assert database.merge(old) == 1
    assert sqlite3.connect(old).execute("PRAGMA user_version").fetchone() == (1,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON\n",
        "{}\n",
        '{"format":"onnxbolt measurements","schema":1}\n{"key":"k"}\n',
        "[]\n",
    ],
)
def test_merge_of_another_file_is_one_clear_error(
    tmp_path: Path, database: Database, text: str
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other.jsonl line \d.*onnxbolt cache export"):
        database.merge(path)
    assert len(database) == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"stages": 99}, "stages"),
        ({"tile": (128, 0, 32)}, "tile"),
        ({"arch": 91}, "arch"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_export", [True, False])
def test_merge_of_what_no_kernel_has_is_one_clear_error(
    tmp_path: Path,
    database: Database,
    change: dict[str, Any],
    what: str,
    is_export: bool,
) -> None:
    other = Database(tmp_path / "other.sqlite")
    other.add(
        ok(2, 5.0), dataclasses.replace(ok(3, 1.0), config=dataclasses.replace(config(3), **change))
    )
    exported(other)
    with pytest.raises(InputError, match=f"other.*no kernel of gemm_2x has such {what}"):
        database.merge(other.path.with_suffix(".jsonl") if is_export else other.path)
    assert len(database) == 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        pytest.param(
            only("resize", 90), "kernels of resize do not solve a GemmProblem", id="family"
        ),
        pytest.param(
            dataclasses.replace(config(3), arch=80), "architecture 80 for 90", id="architecture"
        ),
        pytest.param(
            dataclasses.replace(SM90, columns=SM90.columns + 2),
            "whole accesses of 16 bytes",
            id="columns",
        ),
        pytest.param(dataclasses.replace(SM90, k=1), "such sizes for GemmProblem", id="k-block"),
    ],
)
def test_merge_of_another_problem_s_kernel_is_one_clear_error(
    tmp_path: Path, database: Database, wrong: KernelConfig, what: str
) -> None:
    """The fastest of a problem ends up in models."""
    other = Database(tmp_path / "other.sqlite")
    other.add(ok(2, 5.0), dataclasses.replace(ok(3, 1.0), config=SM90))
    assert database.merge(other.path) == 2
    other.add(dataclasses.replace(ok(3, 1.0), config=wrong))
    with pytest.raises(InputError, match=f"other.*{what}"):
        database.merge(other.path)
    assert len(database) == 2


def test_merge_of_a_time_of_nothing_is_one_clear_error(tmp_path: Path, database: Database) -> None:
    other = Database(tmp_path / "other.sqlite")
    other.add(ok(2, 0.0))
    with pytest.raises(InputError, match="a measured time of 0"):
        database.merge(other.path)


@pytest.mark.parametrize("is_export", [True, False])
def test_merge_takes_no_more_memory_for_more_rows(tmp_path: Path, is_export: bool) -> None:
    def peak(rows: int) -> int:
        with Database(tmp_path / f"{rows}.sqlite") as other:
            other.add(*(ok(2 + i % 3, 1.0 + i) for i in range(rows)))
            exported(other)
        source = other.path.with_suffix(".jsonl") if is_export else other.path
        with Database(tmp_path / f"merged {rows}.sqlite") as database:
            tracemalloc.start()
            assert database.merge(source) == rows
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    assert peak(6000) < peak(2000) + 2**20


def test_merge_of_a_problem_that_equals_a_sound_one_is_one_clear_error(
    tmp_path: Path, database: Database
) -> None:
    """A size of true equals a size of 1, whose checks must not count for it."""
    sound = kernel_key(dataclasses.replace(PROBLEM, m=1), MACHINE)
    other = Database(tmp_path / "other.sqlite")
    other.add(ok(2, 5.0, key=sound))
    assert database.merge(other.path) == 1
    other.add(ok(2, 5.0, key=sound.replace('"m":1,', '"m":true,')))
    with pytest.raises(InputError, match="m is True"):
        database.merge(other.path)


def test_an_export_may_be_compressed(tmp_path: Path, database: Database) -> None:
    database.add(ok(2, 5.0), ok(3, 4.0))
    path = tmp_path / "export.jsonl.gz"
    database.export(path)
    first = path.read_bytes()
    assert gzip.decompress(first) == exported(database)
    database.export(path)
    assert path.read_bytes() == first
    with Database(tmp_path / "other.sqlite") as other:
        assert other.merge(path) == 2
        path.write_bytes(first[:-20])
        with pytest.raises(InputError, match="compressed content is damaged"):
            other.merge(path)


def test_merge_of_a_small_file_that_becomes_large_is_one_clear_error(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.add(ok(2, 5.0), ok(3, 4.0))
    path = tmp_path / "export.jsonl.gz"
    database.export(path)
    monkeypatch.setattr(merging, "_LARGEST", 1000)
    with pytest.raises(InputError, match="more than 1000 characters"):
        database.merge(path)


def test_merge_of_no_file_is_one_clear_error(tmp_path: Path, database: Database) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl"):
        database.merge(tmp_path / "none.jsonl")


# --- schema ---------------------------------------------------------------------------------------


def version_1(path: Path) -> Path:
    """A file as schema version 1 made it, with one measurement."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE measurements (id TEXT PRIMARY KEY, key TEXT NOT NULL, config TEXT, status"
        " TEXT NOT NULL, us REAL, mad REAL, runs INTEGER NOT NULL, error REAL, clock_mhz INTEGER"
        " NOT NULL, detail TEXT NOT NULL, time_ns INTEGER NOT NULL, origin TEXT NOT NULL) WITHOUT"
        " ROWID"
    )
    connection.execute("CREATE INDEX measurements_by_key ON measurements (key)")
    row = str(config(2).row()).replace(" ", "")
    connection.execute(
        "INSERT INTO measurements VALUES ('i', ?, ?, 'ok', 5.0, 0.1, 10, 1e-4, 1980, '', 17, 'o')",
        (KEY, row),
    )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    return path


def test_a_file_of_version_1_is_migrated(tmp_path: Path) -> None:
    path = version_1(tmp_path / "old.sqlite")
    with Database(path) as database:
        assert database.measurements(KEY) == [ok(2, 5.0)]
        assert database.clear(gpu="NVIDIA H200") == 1  # by the column that version 2 added
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_a_newer_schema_is_one_clear_error(tmp_path: Path, database: Database) -> None:
    path = tmp_path / "newer.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    for use in (Database, database.merge):
        with pytest.raises(
            InputError, match=f"newer.sqlite has schema version {SCHEMA + 1}.*update onnxbolt"
        ):
            use(path)


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    path.write_text("not a database " * 100)
    with pytest.raises(InputError, match=r"tuning.sqlite cannot be used.*ONNXBOLT_CACHE_DIR"):
        Database(path)


# --- processes ------------------------------------------------------------------------------------

WRITER = """
import itertools, sys
from pathlib import Path
from onnxbolt.tune.database import Database
from onnxbolt.measurements.records import Measurement, Status
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
database = Database(path)
print("open", flush=True)
for i in itertools.islice(itertools.count(), count or None):
    details = [str(part) for part in range(3)]
    database.add(*(Measurement(name, None, Status.OK, float(i), detail=text) for text in details))
    if i == 20:
        print("busy", flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_processes_create_and_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    writers = [writer(path, f"process {i}", 40) for i in range(4)]
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with Database(path) as database:
        assert len(database) == 4 * 40 * 3
        assert len(database.keys()) == 4


def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    for name in ("first", "second"):
        process = writer(path, name, 0)
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["open\n", "busy\n"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Database(path) as database:
        assert database.keys() == ["first", "second"]
        counts = [len(database.measurements(name)) for name in ("first", "second")]
        assert all(count >= 3 * 20 and count % 3 == 0 for count in counts)
        database.add(ok(2, 5.0))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from onnxbolt.errors import InputError
from onnxbolt.tune.database import Database
from onnxbolt.measurements.records import Measurement, Status
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Database(Path(sys.argv[1])) as database:
    database.add(Measurement("before", None, Status.OK, 1.0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        large = Measurement("many", None, Status.OK, 1.0, detail="x" * 1000)
        database.add(*[large] * 1000)
    except InputError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    database.add(Measurement("after", None, Status.OK, 1.0))
"""


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: what does not fit is not there at all, and
    later measurements are."""
    path = tmp_path / "tuning.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert "tuning.sqlite cannot be used as the tuning database" in done.stdout
    assert "disk I/O error" in done.stdout or "is full" in done.stdout
    with Database(path) as database:
        assert database.keys() == ["after", "before"]
