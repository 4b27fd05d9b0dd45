"""The changes of operators of the default ONNX domain from opset to opset, according to the schemas
of the installed onnx."""

from __future__ import annotations

import functools
from collections import defaultdict

import onnx
from onnx.defs import OpSchema


@functools.cache
def forms() -> dict[str, dict[int, OpSchema]]:
    """The forms of each operator, by the opset that introduced them, in increasing order."""
    found: dict[str, dict[int, OpSchema]] = defaultdict(dict)
    for schema in sorted(
        onnx.defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version
    ):
        if schema.domain == "":
            found[schema.name][schema.since_version] = schema
    return dict(found)


def next_form(op: str, opset: int, target: int) -> int | None:
    """The first opset after `opset`, up to `target`, that changed the operator's form."""
    return next((version for version in forms().get(op, ()) if opset < version <= target), None)


@functools.cache
def is_wider(op: str, opset: int) -> bool:
    """True if the form of `opset` accepts everything that the previous form accepted: it has more
    types, or further attributes and inputs that are optional.

    Schemas do not tell if the meaning is the same: rules.py has the operators whose meaning
    changed.
    """
    versions = forms()[op]
    before = [version for version in versions if version < opset]
    old, new = versions[before[-1]], versions[opset]
    return (
        not new.deprecated
        and _attributes_fit(old, new)
        and all(_parameters_fit(old, new, side) for side in ("inputs", "outputs"))
    )


def _attributes_fit(old: OpSchema, new: OpSchema) -> bool:
    kept = all(
        name in new.attributes
        and new.attributes[name].type == attribute.type
        and new.attributes[name].default_value == attribute.default_value
        and (attribute.required or not new.attributes[name].required)
        for name, attribute in old.attributes.items()
    )
    return kept and not any(
        attribute.required
        for name, attribute in new.attributes.items()
        if name not in old.attributes
    )


def _parameters_fit(old: OpSchema, new: OpSchema, side: str) -> bool:
    """True if the new inputs (or outputs) include all old ones, require no further ones, and accept
    the old types."""
    before, after = getattr(old, side), getattr(new, side)
    if len(after) < len(before) or any(
        one.option == OpSchema.FormalParameterOption.Single for one in after[len(before) :]
    ):
        return False
    return all(
        (a.option == b.option or b.option == OpSchema.FormalParameterOption.Optional)
        and _types(old, a) <= _types(new, b)
        for a, b in zip(before, after, strict=False)
    )


def _types(schema: OpSchema, parameter: OpSchema.FormalParameter) -> set[str]:
    constraints = {
        constraint.type_param_str: set(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    return constraints.get(parameter.type_str, {parameter.type_str})
