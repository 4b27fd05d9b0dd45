"""Writes the measurements that come with the package (onnxbolt/tune/published.py): of each problem
the fastest kernel that computes correct results, as a database or an export has it.

    # writes onnxbolt/tune/published/<gpu>.jsonl.gz
    python -m benchmarks.publish benchmarks/collection-nvidia-h200.jsonl.gz
    # then, so that they stay valid where other kernels change
    python -m tests.same_results note

Files are databases (`tuning.sqlite`) or exports of `onnxbolt cache export`. What today's kernels
have not in common with those measured is left out, and so are regions and whole models, which name
the files of their user. The same measurements give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.racing import say
from onnxbolt.codegen.digest import holds
from onnxbolt.errors import OnnxboltError
from onnxbolt.measurements.keys import canonical, kernel_of_key
from onnxbolt.problems import Problem
from onnxbolt.tune import published
from onnxbolt.tune.database import Database
from onnxbolt.tune.merging import HEADER
from onnxbolt.tune.rows import COLUMNS, measurement_of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("measurements", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, default=published.FOLDER, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    try:
        for gpu, lines in best_rows(chosen.measurements).items():
            path = published.path_of(gpu, chosen.out)
            path.parent.mkdir(exist_ok=True)
            text = "".join(f"{line}\n" for line in (canonical(HEADER), *lines))
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
            say(f"{len(lines)} problems in {path}, {path.stat().st_size} bytes")
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def best_rows(files: Sequence[Path]) -> dict[str, list[str]]:
    """For each GPU a line for each problem, as an export has it."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        every = Path(directory, "every.jsonl")
        with Database(Path(directory, "every.sqlite")) as database:
            for file in files:
                database.merge(file)
            database.export(every)
            found: dict[str, dict[Problem, tuple[float, str]]] = defaultdict(dict)
            for line in every.read_text().splitlines()[1:]:
                row = json.loads(line)
                key, measured = row["key"], measurement_of(tuple(row[name] for name in COLUMNS))
                machine, kernel = json.loads(key).get("machine", {}), kernel_of_key(key)
                if (
                    kernel is not None
                    and holds(machine["templates"], measured.family)
                    and measured == database.best(key)
                ):
                    problems = found[machine["gpu"]]  # keys tell power limits and sources apart
                    best = measured.us, line
                    problems[kernel[0]] = min(problems.get(kernel[0], best), best)
    return {gpu: [line for _, line in best.values()] for gpu, best in found.items()}


if __name__ == "__main__":
    sys.exit(main())
