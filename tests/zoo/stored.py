"""The graphs of tests/zoo/exports, which `python -m tests.zoo.export` wrote.

python -m tests.zoo.stored                               # lists their names
python -m tests.zoo.stored vit_base.ts17.sdpa vit.onnx   # writes a runnable model
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto

from tests.zoo.materialize import materialize

EXPORTS = Path(__file__).with_name("exports")
SUFFIX = ".onnx.xz"
# beside the graphs: see tests/zoo/export/__main__.py
VERSIONS, SHAPES, FAILURES = "versions.json", "shapes.json", "failures.json"


def names() -> list[str]:
    """MODEL.FORM of each graph: see tests/zoo/export/forms.py."""
    return sorted(path.name.removesuffix(SUFFIX) for path in EXPORTS.glob(f"*{SUFFIX}"))


def load(name: str) -> ModelProto:
    """The model with weights drawn again, up to 2.6 GB of them."""
    return materialize(_graph(name))


@functools.cache
def weights(name: str) -> int:
    """The number of the model's weights."""
    return sum(math.prod(tensor.dims) for tensor in _graph(name).graph.initializer)


def _graph(name: str) -> ModelProto:
    """The model as it is stored."""
    stored = (EXPORTS / f"{name}{SUFFIX}").read_bytes()
    return onnx.load_model_from_string(lzma.decompress(stored))


def shapes(name: str) -> dict[str, tuple[int, ...]] | None:
    """The inputs' shapes that a symbolic graph was traced with; None where the usual ones do."""
    known = json.loads((EXPORTS / SHAPES).read_text()).get(name)
    return known and {tensor: tuple(shape) for tensor, shape in known.items()}


def doubled(model: ModelProto, at: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs, with twice the sizes that `at` has for symbolic dimensions."""
    return {
        value.name: tuple(
            2 * size if dim.dim_param else size
            for size, dim in zip(at[value.name], value.type.tensor_type.shape.dim, strict=True)
        )
        for value in model.graph.input
    }


def main(arguments: list[str]) -> None:
    if not arguments:
        print(*names(), sep="\n")
    elif len(arguments) == 2:
        onnx.save(load(arguments[0]), arguments[1])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
