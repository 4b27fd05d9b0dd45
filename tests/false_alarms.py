"""Every graph of tests/zoo and every model of models/, optimized in each precision and verified with several seeds: nothing may fail.

    python -m tests.false_alarms [--only PATTERN] [--seeds N] [--again]

Results are added to tests/false_alarms.json after each run, one entry per model, precision and seed, with a digest of the code that
made it. What is there is not run again without --again, so that the table can be made in parts. With a GPU kernels are compiled and
verified, else function bodies. The exit code is 1 where a verdict is not PASSED.
"""
from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnx import ModelProto

import models
from onnxbolt import optimize
from onnxbolt.gpu import local_arch
from onnxbolt.verify import VerifyResult, verify
from tests.zoo.materialize import materialize

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".json")
PRECISIONS = ("fp16", "bf16", "keep")


def sources() -> Iterator[tuple[str, Callable[[], ModelProto]]]:
    """Names of all models, and what makes each."""
    for path in sorted((ROOT / "tests/zoo").glob("*.onnx")):
        yield f"zoo/{path.stem}", lambda path=path: materialize(onnx.load(path, load_external_data=False))  # type: ignore[misc]
    for name in models.NAMES:
        yield f"models/{name}", lambda name=name: models.build(name, batch=1)  # type: ignore[misc]


def code() -> str:
    """A digest of all that optimizes and verifies."""
    digest = hashlib.sha256()
    for folder in ("onnxbolt", "custom_ops", "templates"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def entry(result: VerifyResult, seconds: float) -> dict[str, object]:
    """What the table keeps: the verdict, and for each level how near the nearest tensor is to its limit."""
    nearest = {}
    for level in ("segment", "node", "model"):
        parts = [row.error / row.limit for row in result.at(level) if row.limit]
        nearest[level] = {"tensors": len(result.at(level)), "nearest": round(max(parts, default=0.0), 3)}
    return {"verdict": result.verdict, "seconds": round(seconds, 1), **nearest, "failures": [row.name for row in result.failures]}


def run(name: str, build: Callable[[], ModelProto], seeds: int, table: dict[str, dict[str, object]], again: bool) -> bool:
    """All precisions and seeds of one model that the table lacks (`again`: all); whether all of its entries passed."""
    passed = True
    for precision in PRECISIONS:
        keys = [f"{name} {precision} {seed}" for seed in range(seeds)]
        missing = [key for key in keys if again or key not in table]
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "out.onnx"
            if missing:
                source = build()
                optimize(source, out, precision=precision, fuse="all", library=local_arch() is not None, verify=False)
            for key in missing:
                start = time.monotonic()
                result = verify(source, out, seed=int(key.rpartition(" ")[2]))
                table[key] = {"code": code(), **entry(result, time.monotonic() - start)}
                TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
                print(key, result.verdict, flush=True)
        passed &= all(str(table[key]["verdict"]).startswith("PASSED") for key in keys)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of names, such as 'zoo/resnet50.*'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="also what the table has")
    options = parser.parse_args()
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    passed = True
    for name, build in sources():
        if fnmatch.fnmatch(name, options.only):
            passed &= run(name, build, options.seeds, table, options.again)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
