"""Plants each fault of fault_list.py in compiled kernels and asks whether verification finds it:
`python -m tests.gpu.planted_faults`.

For each kernel family: a small model (fault_models.py), its library as it is, and one library for
each fault, built from an edited copy of custom_ops/. An edit comes behind the digest, so that a
library with a fault passes for the model's. Verification has to pass with the first and to fail
with all others; the exit code says whether it did.

Building takes about an hour of CPU time and no GPU: `--build-only` stops behind it, and what is
built is kept. `--verify-only` takes the models and libraries from there, so that one machine can
build and another one, with a GPU, verify.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxbolt.codegen.artifacts import Unit, compile_units, link
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families import FAMILIES, Family, named
from onnxbolt.library import units
from tests.edits import replaced
from tests.gpu.fault_list import FAULTS, KINDS, Fault
from tests.gpu.fault_models import prepare

UNEDITED = "none"
WORKERS = max(4, len(os.sched_getaffinity(0)) // 8)  # processes that verify at the same time
PATIENCE = 300  # seconds for the faults of one family
FOUND, MISSED, PASSED, ALARM = "found", "MISSED", "passed", "FALSE ALARM"


def file_of(kind: str) -> str:
    """The library's name for a kind of fault, or UNEDITED."""
    return f"{kind.replace(' ', '_').replace(',', '')}.so"


def edited(root: Path, fault: Fault) -> None:
    """A copy of custom_ops/ at `root` with the fault. Raises ValueError where an edit's text
    does not stand there once."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(resource_dir("custom_ops"), root)
    for edit in fault.edits:
        text = (root / edit.file).read_text()
        try:
            (root / edit.file).write_text(replaced(text, edit.old, edit.new))
        except ValueError as error:
            raise ValueError(f"{fault.family.name}, {fault.kind}, {edit.file}: {error}") from error


def compile_faulty(unit: Unit, fault: Fault, directory: Path, toolchain: Toolchain) -> Path:
    """The object of `unit` with the fault, in a directory that is named by all that decides it,
    or from there."""
    key = hashlib.sha256(
        repr((unit, fault.edits, toolchain.version, _tree())).encode()
    ).hexdigest()[:24]
    compiled = directory / f"{key}.o"
    if not compiled.exists():
        root = directory / key
        edited(root, fault)
        (root / "unit.cu").write_text(unit.text)
        command = toolchain.compile_command(str(root / "unit.cu"), str(root / "unit.o"), unit.arch)
        real = f"-I{resource_dir('custom_ops')}"
        if real not in command:
            raise ValueError(f"{real} is not in the compiler's command: {command}")
        subprocess.run([f"-I{root}" if part == real else part for part in command], check=True)
        os.replace(root / "unit.o", compiled)
        shutil.rmtree(root)
    return compiled


def _tree() -> str:
    root = resource_dir("custom_ops")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def build(families: Sequence[Family[Any]], directory: Path) -> None:
    """Models and libraries of `families`, in a folder of `directory` for each."""
    toolchain = find_toolchain()
    prepared = {family: prepare(family) for family in families}
    needed = {family: units(made.manifest) for family, made in prepared.items()}
    objects = directory / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    everything = list(dict.fromkeys(unit for of_family in needed.values() for unit in of_family))
    plain = dict(
        zip(
            everything,
            compile_units(everything, toolchain, lambda line: print(line, flush=True)),
            strict=True,
        )
    )

    def faulty(fault: Fault) -> tuple[Fault, list[Path]]:
        started, result = time.monotonic(), []
        for unit in needed[fault.family]:
            is_family = unit.name.startswith(f"{fault.family.name}_sm")
            result.append(
                compile_faulty(unit, fault, objects, toolchain) if is_family else plain[unit]
            )
        print(
            f"compiled {fault.family.name}: {fault.kind} ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
        return fault, result

    for family, made in prepared.items():
        folder = directory / family.name
        folder.mkdir(exist_ok=True)
        onnx.save(made.original, folder / "original.onnx")
        onnx.save(made.optimized, folder / "optimized.onnx")
        link([plain[unit] for unit in needed[family]], folder / file_of(UNEDITED), toolchain)
    slow_first = sorted(
        (fault for fault in FAULTS if fault.family in prepared),
        key=lambda fault: fault.family is not named("gemm_3x"),
    )
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for fault, parts in pool.map(faulty, slow_first):
            link(parts, directory / fault.family.name / file_of(fault.kind), toolchain)


def judge(folder: Path, kinds: Sequence[str]) -> None:
    """In a process of its own: prints one JSON line for each of `kinds` as soon as it is
    verified."""
    from onnxbolt.verify import verify

    for kind in kinds:
        started = time.monotonic()
        result = verify(
            folder / "original.onnx",
            folder / "optimized.onnx",
            library=folder / file_of(kind),
            providers=["CUDAExecutionProvider"],
        )
        levels = sorted({row.level for row in result.failures})
        reasons = [f"{row.name}: {row.reason}" for row in result.failures[:2]]
        print(
            json.dumps(
                {
                    "kind": kind,
                    "passed": result.passed,
                    "levels": levels,
                    "reasons": reasons,
                    "seconds": round(time.monotonic() - started, 2),
                }
            ),
            flush=True,
        )


def verdicts(family: Family[Any], directory: Path) -> list[dict[str, Any]]:
    """The verdict on the unedited library and on each fault. A process that dies is the finding
    "crashed" for the fault that it was running."""
    pending = [UNEDITED, *(fault.kind for fault in FAULTS if fault.family is family)]
    found: list[dict[str, Any]] = []
    while pending:
        command = [
            sys.executable,
            "-m",
            "tests.gpu.planted_faults",
            "--judge",
            str(directory / family.name),
            *pending,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            output, why = done.stdout, done.stderr[-500:]
        except subprocess.TimeoutExpired as error:
            output, why = (error.stdout or b"").decode(), f"no answer within {PATIENCE} s"
        answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for answer in answers:
            good, bad = (PASSED, ALARM) if answer["kind"] == UNEDITED else (MISSED, FOUND)
            found.append(
                {"family": family.name, "verdict": good if answer["passed"] else bad, **answer}
            )
        pending = pending[len(answers) :]
        if pending:
            found.append(
                {
                    "family": family.name,
                    "kind": pending.pop(0),
                    "verdict": "crashed",
                    "reasons": [why],
                }
            )
    for row in found:
        print(f"{family.name}: {row['kind']}: {row['verdict']} {row['reasons']}", flush=True)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: families down, kinds of faults across."""
    cells = {(row["family"], row["kind"]): str(row["verdict"]) for row in rows}
    lines = [
        "| family | " + " | ".join(("as it is", *KINDS)) + " |",
        "|---" * (len(KINDS) + 2) + "|",
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        lines.append(
            f"| {family} | "
            + " | ".join(cells.get((family, kind), "-") for kind in (UNEDITED, *KINDS))
            + " |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--families",
        nargs="*",
        default=[family.name for family in FAMILIES.values()],
        help="names, by default all",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("build/planted_faults"),
        help="of models and libraries",
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--build-only", action="store_true", help="verify nothing; needs no GPU")
    part.add_argument("--verify-only", action="store_true", help="build nothing")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path(__file__).with_suffix(".json"),
        help="where the result goes",
    )
    parser.add_argument("--judge", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.judge:
        judge(Path(arguments.judge[0]), arguments.judge[1:])
        return 0
    families = [named(name) for name in arguments.families]
    if not arguments.verify_only:
        build(families, arguments.directory)
    if arguments.build_only:
        return 0
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        rows = [
            row
            for of_family in pool.map(
                lambda family: verdicts(family, arguments.directory), families
            )
            for row in of_family
        ]
    faults = [row for row in rows if row["kind"] != UNEDITED]
    found, sound = (
        sum(row["verdict"] == FOUND for row in faults),
        sum(row["verdict"] == PASSED for row in rows),
    )
    summary = (
        f"{found} of {len(faults)} faults found; {sound} of {len(families)} libraries without a"
        " fault passed"
    )
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    )
    gpu = asked.stdout.splitlines()[:1]
    document = {"families": arguments.families, "gpu": gpu, "summary": summary, "rows": rows}
    with tempfile.NamedTemporaryFile("w", dir=arguments.json.parent, delete=False) as file:
        json.dump(document, file, indent=1)
    os.replace(file.name, arguments.json)
    print(table(rows))
    print(summary)
    return 0 if found == len(faults) and sound == len(families) else 1


if __name__ == "__main__":
    sys.exit(main())
