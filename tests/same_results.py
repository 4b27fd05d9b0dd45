"""Records and compares what must not change while the code is rearranged: exported models,
predicted times, and kernels' machine code.

    # writes tests/same_results.jsonl and .lock, once
    python -m tests.same_results invent
    # writes tests/same_results.json
    python -m tests.same_results record [--only PATTERN] [--jobs N]
    # exit code 1 if anything differs
    python -m tests.same_results compare [--only PATTERN] [--jobs N]
    # notes today's sources: of families whose sources stay as they are, measurements stay valid
    python -m tests.same_results note
    # the same for families whose sources have changed since they were recorded, but not their code
    python -m tests.same_results rekey

Models: every graph of tests/zoo and every model of models/, fp16 and keep, sm_80 and sm_90a. The
file has a digest of each exported model without the entries that name the version and the sources,
and the sum of its kernels' predicted times. Kernels: one unit of each family; the file has a digest
of the instructions that nvcc makes of it. Plans: of two models with measurements that an earlier
commit stored (same_results.jsonl, an export of a database; the times are invented) and with the
lock file that it wrote of one (same_results.lock). A pattern is one of model names, "kernels/*" or
"plans/*".
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxbolt import optimize
from onnxbolt.archs import get
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.digest import (
    EQUAL,
    families_digests,
    family_sources_digest,
    kernel_sources_digest,
    same_kernels,
)
from onnxbolt.codegen.render import Instance, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.families import config_from
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import Timings
from onnxbolt.names import CONVOLUTIONS, CUDA_GRAPH, INPUTS
from onnxbolt.plan.cost import ranked
from onnxbolt.plan.regions import Region
from onnxbolt.problems import Problem
from onnxbolt.tune import stage
from onnxbolt.tune.database import Database
from onnxbolt.tune.subject import Subject
from tests.codegen.compilation import DeviceToolchain, watchful
from tests.codegen.cubin import instructions
from tests.false_alarms import sources
from tests.tune.fakes import true_us

RECORD = Path(__file__).with_suffix(".json")
MEASUREMENTS, LOCK = RECORD.with_suffix(".jsonl"), RECORD.with_suffix(".lock")
MEASURED = ("models/repvgg_a0_deploy", "models/dcn_v2")  # the lock file is the first one's
PRECISIONS, ARCHS = ("fp16", "keep"), ("sm_80", "sm_90a")
# metadata entries that name what made the model, and facts for deployment
NOT_COMPARED = ("onnxbolt.digest", "onnxbolt.version", CONVOLUTIONS, INPUTS, CUDA_GRAPH)
TOLERANCE = 1e-9  # relative, of predicted times
_COMPILATIONS = 12  # most compilations of one unit


def exported(
    name: str, precision: str, arch: str, lock: Path | None = None, frozen: bool = False
) -> dict[str, Any]:
    """A digest of the optimized model, and the sum of its predicted times in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.onnx"
        report = optimize(
            sources()[name](),
            out,
            precision=precision,
            archs=arch,
            library=False,
            verify=False,
            lock=lock,
            frozen=frozen,
        )
        model = onnx.load(out)
    kept = [entry for entry in model.metadata_props if entry.key not in NOT_COMPARED]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.producer_version = ""
    times = [prediction.ours_us for node in report.fused for prediction in node.predicted]
    return {
        "model": hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest(),
        "fused": len(report.fused),
        "predicted_us": math.fsum(times),
    }


def measured(name: str, known: Path | None) -> dict[str, Any]:
    """The same, fp16 on sm_90a, with what a database knows of this machine; without one every
    kernel is given a time first."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Database(Path(directory) / "tuning.sqlite") as database,
    ):
        if known:
            database.merge(known)

        @contextlib.contextmanager
        def memory(
            subject: Subject, archs: Sequence[int], locked: Timings
        ) -> Iterator[stage._Memory]:
            yield (stage._Memory if known else _Invented)(subject, database, machine())

        with unittest.mock.patch.object(stage, "_memory", memory):
            found = exported(
                name, "fp16", "sm_90a", lock=None if known else Path(directory) / "lock"
            )
        if not known:
            database.export(Path(directory) / "export")
            lines = [
                *MEASUREMENTS.read_text().splitlines(),
                *(Path(directory) / "export").read_text().splitlines(),
            ]
            MEASUREMENTS.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)))
            if name == MEASURED[0]:
                shutil.copy(Path(directory) / "lock", LOCK)
    return found


class _Invented(stage._Memory):
    """A database that has a time for the kernels that are predicted to be fastest, whatever is
    asked for."""

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        for problem in dict.fromkeys(problems):
            if not self.database.measurements(key := kernel_key(problem, self.machine)):
                self.database.add(
                    *(
                        Measurement(
                            key, config, Status.OK, true_us(problem, config), 0.01, 20, 1e-4, 1980
                        )
                        for _, config in ranked(problem, get(self.machine.arch))[:5]
                    )
                )
        return super().extend(timings, problems, found)


def machine() -> Machine:
    """The machine that the measurements claim to come from; the sources are today's."""
    return Machine("NVIDIA H200", 90, 700, "13.0", "4.2.0", kernel_sources_digest())


def machine_code(described: dict[str, Any], recorded: str = "") -> str:
    """A digest of the instructions of all kernels of a unit, whatever they are called.

    Compilations are repeated until one gives what is recorded: of a kernel that spills registers
    (gemm_rows_sm90), ptxas gives one of two orders of instructions for the same input.
    """
    instances = [
        Instance(config_from(row), DType(element), DType(out), tuple(chain))
        for row, (element, out), chain in zip(
            described["rows"], described["types"], described["chains"], strict=True
        )
    ]
    arch = instances[0].config.arch
    found = ""
    for attempt in range(_COMPILATIONS if recorded else 1):
        # the comment makes it another entry of the cache of objects
        text = render_unit(instances) + (f"// {attempt}\n" if attempt else "")
        unit = Unit(f"unit_sm{arch}.cu", text, arch)
        cubin = compile_units([unit], watchful(DeviceToolchain))[0]
        code = sorted(
            hashlib.sha256(content).hexdigest() for _, content in instructions(cubin.read_bytes())
        )
        found = hashlib.sha256("".join(code).encode()).hexdigest()
        if found == recorded:
            break
    return found


def tasks(only: str) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Name, function and arguments of all that is recorded and fits the pattern."""
    for name in sources():
        if fnmatch.fnmatch(name, only):
            yield from (
                (f"{name} {precision} {arch}", exported, (name, precision, arch))
                for precision in PRECISIONS
                for arch in ARCHS
            )
    found = json.loads(RECORD.read_text())["found"]
    for name, unit in units().items():
        if fnmatch.fnmatch(f"kernels/{name}", only):
            key = f"kernels/{name}"
            yield key, machine_code, (unit, found.get(key, ""))
    for name in MEASURED:
        if fnmatch.fnmatch(f"plans/{name}", only):
            yield f"plans/{name} measured", measured, (name, MEASUREMENTS)
    if fnmatch.fnmatch(f"plans/{MEASURED[0]}", only):
        yield f"plans/{MEASURED[0]} frozen", exported, (MEASURED[0], "fp16", "sm_90a", LOCK, True)


def units() -> dict[str, dict[str, Any]]:
    """One unit of each family, in numbers and words as models hold them."""
    return dict(json.loads(RECORD.read_text())["units"])


def differences(recorded: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """A line for each entry of `found` that is not as recorded."""
    for name, value in found.items():
        if name not in recorded:
            yield f"{name}: not recorded"
        elif isinstance(value, str) and value != recorded[name]:
            yield f"{name}: other instructions"
        elif isinstance(value, dict):
            before = recorded[name]
            if not math.isclose(value["predicted_us"], before["predicted_us"], rel_tol=TOLERANCE):
                yield (
                    f"{name}: {value['predicted_us']} us are predicted, not"
                    f" {before['predicted_us']}"
                )
            if value["model"] != before["model"]:
                yield f"{name}: another model, {value['fused']} fused nodes of {before['fused']}"


def note() -> None:
    """Write the digests of today's sources, by which later ones are compared with them."""
    table = json.loads(EQUAL.read_text())
    table["sources"][kernel_sources_digest()] = families_digests()
    _write_table(table)


def rekey(document: dict[str, Any]) -> list[str]:
    """Write which families of other sources than the recorded ones have the same machine code, and
    return a line for each that has another."""
    table = json.loads(EQUAL.read_text())
    lines = []
    for family, before in document["sources"].items():
        if not same_kernels(family, before):
            found = dict(map(_run, tasks(f"kernels/{family}")))
            changed = list(differences(document["found"], found))
            if not changed:
                groups = table["equal"].get(family, [])
                equal = {before, family_sources_digest(family)}.union(
                    *(group for group in groups if before in group)
                )
                others = [group for group in groups if before not in group]
                table["equal"][family] = [*others, sorted(equal)]
            lines += changed
    _write_table(table)
    return lines


def _write_table(table: dict[str, Any]) -> None:
    EQUAL.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def _run(task: tuple[str, Callable[..., Any], tuple[Any, ...]]) -> tuple[str, Any]:
    name, function, arguments = task
    return name, function(*arguments)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("invent", "record", "compare", "note", "rekey"))
    parser.add_argument(
        "--only", default="*", help="a pattern of model names, such as 'zoo/resnet50.*', or kernels"
    )
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    document = json.loads(RECORD.read_text())
    if chosen.command == "invent":
        MEASUREMENTS.write_text("")
        for name in MEASURED:
            measured(name, None)
        return 0
    if chosen.command == "note":
        note()
        return 0
    if chosen.command == "rekey":
        print("\n".join(lines := rekey(document)))
        return 1 if lines else 0
    found: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(chosen.jobs, maxtasksperchild=8) as pool:
        for name, value in pool.imap_unordered(_run, tasks(chosen.only)):
            found[name] = value
            print(name, flush=True)
            if chosen.command == "record":
                document["found"] = dict(sorted((document["found"] | found).items()))
                kind, _, family = name.partition("/")
                if kind == "kernels":
                    document["sources"][family] = family_sources_digest(family)
                document["commit"] = subprocess.run(
                    ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
                ).stdout.strip()
                RECORD.write_text(json.dumps(document, indent=1) + "\n")
    if chosen.command == "record":
        return 0
    lines = sorted(differences(document["found"], found))
    print(
        "\n".join(
            [
                *lines,
                f"{len(found)} compared, {len(lines)} differ from commit {document['commit'][:12]}",
            ]
        )
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
