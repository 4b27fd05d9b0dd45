from __future__ import annotations

import onnx
import pytest

from onnxbolt.canonicalize.einsum_form import run
from tests.canonicalize.compare import applied, model, operators, unchanged


def _source(equation: str, *result: int | str) -> onnx.ModelProto:
    node = ("Einsum", "x", "y", {"equation": equation})
    return model([node], {"x": ("n", 4, 6)}, {"y": result})


@pytest.mark.parametrize(
    ("equation", "result"),
    [("abc->cab", (6, "n", 4)), (" n h w -> h n w ", (4, "n", 6)), ("aBb->Bba", (4, 6, "n"))],
)
def test_a_permutation_is_a_transpose(equation: str, result: tuple[int | str, ...]) -> None:
    assert operators(applied(_source(equation, *result), run, 1)) == ["Transpose"]


@pytest.mark.parametrize(
    ("equation", "result"),
    [("abc->ac", ("n", 6)), ("acb", ("n", 6, 4)), ("...c->c...", (6, "n", 4)), ("abc->", ())],
)
def test_other_forms_stay(equation: str, result: tuple[int | str, ...]) -> None:
    unchanged(_source(equation, *result), run)
