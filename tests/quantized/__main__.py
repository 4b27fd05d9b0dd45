"""Write the models of `subjects.py` in the forms of `tools.py` to tests/quantized/graphs.

    python -m tests.quantized [--into FOLDER]

Needs onnxruntime alone. The same releases write the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from tests.quantized.stored import FOLDER, SUFFIX
from tests.quantized.subjects import SUBJECTS
from tests.quantized.tools import TOOLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=FOLDER)
    folder = parser.parse_args().into
    folder.mkdir(parents=True, exist_ok=True)
    for subject, build in SUBJECTS.items():
        for form, write in TOOLS.items():
            onnx.save(write(build()), folder / f"{subject}.{form}{SUFFIX}")


if __name__ == "__main__":
    main()
