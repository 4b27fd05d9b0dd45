"""Every exported model, optimized in each precision: what is fused, and whether it is right.

    python -m tests.zoo.verified [--only PATTERN] [--precision P] [--jobs N] [--minutes M]
                                 [--into PATH] [--keep-old]

An entry of tests/zoo/verified.json is a model in one precision: the share of the FLOPs of its
products that fused nodes do, each kind of product that is left with its reason, how many of its
attentions, norms and gated linear units are fused and why others are not, the verdict of
verification, and the sizes that it compared: those that the model was traced with, of some models
small usual ones. Where sizes of the trace are stored, the whole model runs at twice these as well,
in plain ONNX Runtime. `faults` says what is wrong with it. Entries are written as they come, with a
digest of the code that made them. What the file has of this code is not run again, so that the
table can be made in parts; with --keep-old entries of other code count as well. The shortest runs
come first, then models that have not run yet, by their weights; with several jobs the longest come
first, so that all end together. Each run is a process of its own. The exit code is 1 where a run
has a fault or is missing.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from onnxbolt.verify import whole
from onnxbolt.verify.feeds import drawn
from onnxbolt.verify.models import MEMORY_LIMIT, Models, reference, runner
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from tests.false_alarms import PRECISIONS, Table, Task, code, limit_threads, run, share_cores
from tests.zoo.coverage import Studied
from tests.zoo.recognition import OVERLOOKED, reasons
from tests.zoo.stored import doubled, names, weights

TABLE = Path(__file__).with_suffix(".json")
FUSED = 0.99  # the share of the products' FLOPs


def entry(studied: Studied) -> dict[str, Any]:
    """An entry of the table, without the digest of the code and the time."""
    work = studied.products()
    total = sum(product.flops for product, _ in work)
    flops, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for product, reason in work:
        if reason:
            flops[product.op, reason] += product.flops
            counts[product.op, reason] += 1
    left = [
        {
            "op": op,
            "nodes": counts[op, reason],
            "share": round(flops[op, reason] / total, 5) if total else 0.0,
            "reason": reason,
        }
        for op, reason in sorted(counts, key=lambda key: -flops[key])
    ]
    found = studied.report.verification
    assert found is not None
    result = {
        "gflops": round(total / 1e9, 3),
        "fused": round(1 - sum(flops.values()) / total, 5) if total else 1.0,
        "left": left,
        "parts": recognized(studied),
        "verdict": found.verdict,
        "sizes": sorted({row.sizes for row in found.rows}),
        "failures": [f"{row.level} {row.name}: {row.reason}" for row in found.failures],
        "at other sizes": dict(at_other_sizes(studied)),
    }
    return result | {"faults": list(faults(result))}


def recognized(studied: Studied) -> dict[str, Any]:
    """For each kind of part (attention, norm, gated linear unit) the number of parts and of those
    that are fused, and the reasons of the others with their numbers."""
    found: dict[str, Any] = {}
    for part, reason in reasons(studied.source, studied.report):
        kind = found.setdefault(part.kind, {"parts": 0, "fused": 0})
        kind["parts"] += 1
        kind["fused"] += not reason
        if reason:
            left = kind.setdefault("left", {})
            left[reason] = left.get(reason, 0) + 1
    return found


def at_other_sizes(studied: Studied) -> Iterator[tuple[str, str]]:
    """The verdict on each output of the whole model at twice the sizes that it was traced with, in
    plain ONNX Runtime; under an empty name that the original does not run there."""
    if studied.at is None:
        return
    notes: dict[str, None] = {}
    source, optimized = studied.source, studied.model
    models = Models(
        source,
        optimized,
        reference(source, CPU, notes),
        runner(optimized, CPU, notes),
        None,
        (None, None),
        False,
        MEMORY_LIMIT,
        notes,
    )
    feeds = drawn(source, doubled(source, studied.at), 0)
    try:
        models.reference.run(feeds, [])
    except RUNTIME_ERRORS as error:
        yield "", f"the original does not run: {error}"
        return
    for row in whole.rows(models, feeds):
        yield row.name, row.verdict


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    """The ways in which an entry misses the aim, in words."""
    if found["fused"] < FUSED:
        yield f"only {found['fused']:.2%} of the products are fused"
    for kind in found["left"]:
        if kind["reason"] == OVERLOOKED:
            yield f"{kind['nodes']} {kind['op']}: neither fused nor refused"
    for name, kind in found["parts"].items():
        if overlooked := kind.get("left", {}).get(OVERLOOKED):
            yield f"{overlooked} {name}: neither fused nor refused"
    yield from found["failures"]
    for name, verdict in found["at other sizes"].items():
        if verdict.startswith("FAILED"):
            yield f"{name} at other sizes: {verdict}"


def tasks(
    table: Table, wanted: Sequence[str], precisions: Sequence[str], digest: str | None
) -> list[Task]:
    """The runs that the table lacks of this code (of any code without a digest), those that are
    known to take the least time first, then those of the fewest weights."""

    def order(task: Task) -> tuple[float, int]:
        known = [
            float(found["seconds"])
            for key, found in table.items()
            if key.split()[0] == task.name and "seconds" in found
        ]
        return max(known, default=math.inf), weights(task.name)

    lacking = [
        Task(name, precision, ())
        for name in wanted
        for precision in precisions
        if not counts(table, f"{name} {precision}", digest)
    ]
    return sorted(lacking, key=order)


def counts(table: Table, key: str, digest: str | None) -> bool:
    """True if the table has the run, of this code or, without a digest, of any."""
    return key in table and digest in (None, table[key]["code"])


def work(task: Task, digest: str, threads: int, results: Connection) -> None:
    """Send the key and the entry of a run. An error becomes the run's fault."""
    limit_threads(threads)
    start = time.process_time()
    try:
        found = entry(Studied(task.name, task.precision, verify=True))
    except Exception as error:  # the others go on
        found = {"faults": [f"{type(error).__name__}: {error}"]}
    seconds = round(time.process_time() - start, 1)
    results.send((f"{task.name} {task.precision}", {"code": digest, "seconds": seconds, **found}))


def summary(table: Table, keys: Sequence[str], digest: str | None) -> tuple[str, bool]:
    """The last line, and whether all runs are there and without faults."""
    found = [table[key] for key in keys if counts(table, key, digest)]
    right = sum(not one["faults"] for one in found)
    missing = len(keys) - len(found)
    line = f"{len(keys)} runs: {right} passed, {len(found) - right} failed, {missing} not run"
    return line, right == len(keys)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo.verified",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", help="a pattern of names; may be repeated")
    parser.add_argument(
        "--precision", action="append", choices=PRECISIONS, help="this one alone; may be repeated"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs side by side, which share the cores"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="nothing is begun after these"
    )
    parser.add_argument("--into", type=Path, default=TABLE, help="the table's file")
    parser.add_argument(
        "--keep-old", action="store_true", help="do not run again what other code has run"
    )
    return parser.parse_args()


def main() -> int:
    options, digest = _arguments(), code()
    threads = share_cores(options.jobs)
    table: Table = json.loads(options.into.read_text()) if options.into.exists() else {}
    counted = None if options.keep_old else digest
    chosen = [
        name
        for name in names()
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only or ["*"])
    ]
    precisions = options.precision or PRECISIONS

    def start(task: Task, results: Connection) -> multiprocessing.process.BaseProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=work, args=(task, digest, threads, results), daemon=True
        )
        process.start()
        return process

    def save(key: str, found: Mapping[str, Any]) -> None:
        table[key] = dict(found)
        new = options.into.with_suffix(".new")
        new.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        new.replace(options.into)
        print(f"{key}: {found.get('fused', 0):.2%} fused", *found["faults"], sep="\n  ", flush=True)

    until = time.time() + 60 * options.minutes
    lacking = tasks(table, chosen, precisions, counted)
    todo = lacking if options.jobs == 1 else lacking[::-1]
    run(todo, options.jobs, until, start, save)
    keys = [f"{name} {precision}" for name in chosen for precision in precisions]
    line, passed = summary(table, keys, counted)
    print(line)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
