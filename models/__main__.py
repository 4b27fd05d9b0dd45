"""python -m models NAME OUT.onnx: writes one model."""

from __future__ import annotations

import argparse
import sys

import onnx

from models import NAMES, build
from models.builder import PRECISIONS


def main(arguments: list[str] | None = None) -> int:
    """Write the model and return the exit code: 0, or 1 with a one-line message on the error."""
    parser = argparse.ArgumentParser(
        prog="python -m models",
        description="Write one of the models that onnxbolt is measured with.",
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("out", metavar="OUT.onnx")
    parser.add_argument(
        "--batch",
        default="1",
        help="a number, or a name such as N for a symbolic batch (default: 1)",
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument(
        "--io", choices=PRECISIONS, help="type of inputs and outputs (default: as --precision)"
    )
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    batch = int(chosen.batch) if chosen.batch.lstrip("-").isdigit() else chosen.batch
    try:
        onnx.save(
            build(chosen.name, batch, chosen.precision, chosen.seed, chosen.opset, chosen.io),
            chosen.out,
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
