"""onnx's backend suite through `optimize`: what plain ONNX Runtime computes as the suite expects,
the optimized model must, too.

`python -m tests.backend_suite` runs all cases (minutes) and exits with 1 where one regressed;
tests/test_backend_suite.py runs a part. The cases come with the package onnx: those of single
nodes, and the small models that it stores. Kind "real" is left out: downloads.
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import onnxbolt
from onnxbolt.errors import OnnxboltError
from onnxbolt.options import PRECISIONS
from onnxbolt.runtime import keep_channels
from onnxbolt.verify.session import uses
from onnxbolt.verify.widen import widened

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
# inputs in the order of the graph's, and the outputs that they should give
DataSet = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class Case:
    """A model, and what it should answer within the suite's own bounds."""

    name: str
    model: ModelProto
    data: Sequence[DataSet]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of one case; `plain` and `ours` say what went wrong, nothing where all is
    well."""

    name: str
    plain: str = ""
    ours: str = ""
    fused: int = 0
    passed_through: str = ""  # why, where the model was written as it was

    @property
    def regressed(self) -> bool:
        """True if plain ONNX Runtime is right and the optimized model is wrong."""
        return not self.plain and bool(self.ours)


def cases(kinds: Iterable[str] = KINDS) -> Iterator[Case]:
    """All cases, in the order of their names."""
    with warnings.catch_warnings():
        # numpy's, of infinities that the suite computes with
        warnings.simplefilter("ignore", RuntimeWarning)
        found = [test for kind in kinds for test in load_model_tests(kind=kind)]
    for test in sorted(found, key=lambda test: (test.kind, test.name)):
        if test.model is not None:
            yield Case(test.name, test.model, test.data_sets or (), test.rtol, test.atol)
        elif test.model_dir is not None:
            model = onnx.load(Path(test.model_dir) / "model.onnx")
            yield Case(
                test.name, model, list(_stored(Path(test.model_dir), model)), test.rtol, test.atol
            )


def _stored(directory: Path, model: ModelProto) -> Iterator[DataSet]:
    for folder in sorted(directory.glob("test_data_set_*")):
        inputs, outputs = (
            [
                _value(path, value.type)
                for index, value in enumerate(values)
                if (path := folder / f"{kind}_{index}.pb").exists()
            ]
            for kind, values in (("input", model.graph.input), ("output", model.graph.output))
        )
        yield inputs, outputs


def _value(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def judge(case: Case, precision: str = "keep") -> Verdict:
    """Run the case as it is, then optimized. In fp16 and bf16 (widened, for the CPU) it must run
    alone, since rounding differs."""
    try:
        names = _check(case, case.model, (), exact=True)
    except Exception as error:
        # ONNX Runtime's classes derive from this alone; models that it cannot run are not judged
        return Verdict(case.name, plain=_line(error))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "out.onnx"
        try:
            report = onnxbolt.optimize(
                case.model,
                path,
                precision=precision,
                fuse="all",
                archs=("sm_80",),
                library=False,
                verify=False,
            )
            written, widen = (
                onnx.load(path),
                precision == "bf16" and not uses(case.model, [TensorProto.BFLOAT16]),
            )
            _check(
                case, widened(written)[0] if widen else written, names, exact=precision == "keep"
            )
        except Exception as error:  # any failure counts
            return Verdict(case.name, ours=_line(error))
    return Verdict(case.name, fused=len(report.fused), passed_through=report.passed_through)


def _check(case: Case, model: ModelProto, names: Sequence[str], exact: bool) -> Sequence[str]:
    """Run the model on the case's data, which belong to inputs of these names (default: the model's
    own), and say for which they are.

    Raises where an answer is another than the suite's.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    keep_channels(options)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    present = {value.name for value in session.get_inputs()}
    names = names or [value.name for value in session.get_inputs()]
    for inputs, expected in case.data:
        feeds = {
            name: _fed(value) for name, value in zip(names, inputs, strict=False) if name in present
        }
        outputs = session.run(None, feeds)
        if exact:
            Runner.assert_similar_outputs(
                [_array(value) for value in expected], outputs, case.rtol, case.atol
            )
    return names


def _fed(value: Any) -> Any:
    """A value as a session takes it: types that numpy lacks as ONNX Runtime's own."""
    value = _array(value)
    if isinstance(value, np.ndarray) and value.dtype.isbuiltin != 1:
        bits = value.view({1: np.uint8, 2: np.uint16}[value.dtype.itemsize])
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            bits, int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype))
        )
    return value


def _array(value: Any) -> Any:
    """Numbers as arrays, and stored tensors decoded; sequences, which hold arrays, as they are."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _line(error: Exception) -> str:
    known = isinstance(error, OnnxboltError)
    return " ".join(f"{'' if known else type(error).__name__ + ': '}{error}".split())[:300]


def sample(found: Sequence[Case], count: int, seed: int = 0) -> list[Case]:
    """As many of the cases, drawn at random."""
    return random.Random(seed).sample(list(found), min(count, len(found)))


def summary(verdicts: Sequence[Verdict]) -> str:
    """The text that `python -m tests.backend_suite` prints."""
    right = [verdict for verdict in verdicts if not verdict.plain]
    lines = [
        (
            f"{len(verdicts)} cases, {len(right)} of them right in plain ONNX Runtime"
            f" {ort.__version__}"
        ),
        f"right after onnxbolt: {sum(not verdict.ours for verdict in right)}",
        f"with fused nodes: {sum(verdict.fused > 0 for verdict in right)}",
    ]
    reasons = Counter(verdict.passed_through for verdict in right if verdict.passed_through)
    lines.append(f"passed through as they were: {sum(reasons.values())}")
    lines += [f"  {count:4} {reason}" for reason, count in reasons.most_common()]
    regressed = [verdict for verdict in verdicts if verdict.regressed]
    lines.append(f"regressions: {len(regressed)}")
    return "\n".join([*lines, *(f"  {verdict.name}: {verdict.ours}" for verdict in regressed)])


@click.command()
@click.option("--precision", type=click.Choice(PRECISIONS), default="keep", show_default=True)
@click.option("--only", default="", help="Cases whose name holds this.")
def main(precision: str, only: str) -> None:
    """Run the whole suite and print what it found."""
    verdicts = []
    for case in cases():
        if only in case.name:
            verdicts.append(judge(case, precision))
            if verdicts[-1].regressed:
                click.echo(f"{case.name}: {verdicts[-1].ours}", err=True)
    click.echo(summary(verdicts))
    sys.exit(any(verdict.regressed for verdict in verdicts))


if __name__ == "__main__":
    main()
