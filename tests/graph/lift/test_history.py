"""Every step of every operator up to the opset of the stages: by a rule, or as it is, or known
to have no way."""

from __future__ import annotations

from onnxbolt.graph.importer import WORKING_OPSET
from onnxbolt.graph.lift.history import forms, is_wider, next_form
from onnxbolt.graph.lift.rules import RULES

FIRST = 7  # the oldest opset that ONNX Runtime promises to run
NO_WAY = {("Scan", 9)}


def steps(first: int) -> set[tuple[str, int]]:
    """(operator, opset) of each form that follows another one."""
    return {
        (op, version)
        for op, versions in forms().items()
        for version in list(versions)[1:]
        if first < version <= WORKING_OPSET
    }


def test_each_change_of_an_operator_has_a_rule_or_is_wider() -> None:
    assert {step for step in steps(FIRST) if step not in RULES and not is_wider(*step)} == NO_WAY


def test_rules_are_for_steps_that_exist() -> None:
    assert set(RULES) <= steps(0)


def test_changes_of_meaning_that_no_schema_shows_have_rules() -> None:
    """Upsample and Resize round otherwise; a slope of PRelu, and B of an operation, were placed
    otherwise."""
    hidden = {("PRelu", 7), ("Resize", 11), ("Softmax", 13), ("LogSoftmax", 13), ("Hardmax", 13)}
    assert hidden <= set(RULES)


def test_forms_that_take_all_that_earlier_ones_take() -> None:
    assert is_wider("Relu", 13)
    assert is_wider("MaxPool", 8)  # an output that may be absent
    assert is_wider("Gemm", 11)  # C may be absent
    assert not is_wider("Concat", 4)  # axis must be given
    assert not is_wider("Clip", 11)
    assert not is_wider("Upsample", 10)  # gone


def test_the_next_opset_that_changed_an_operator() -> None:
    assert [next_form("Clip", opset, 13) for opset in (6, 10, 11, 13)] == [11, 11, 12, None]
    assert next_form("Clip", 6, 10) is None
    assert next_form("Unheard", 1, 13) is None
