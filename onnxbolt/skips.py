"""Fusions that a user rules out, by the name of a fused node, a source node or a tensor, or by
rule.

Each of these names stands for source nodes, and source nodes are what planning leaves alone
(graph/skipping.py). Fused nodes and rules are those of the plan without any skips, which is
therefore made first. A plan with skipped nodes may have further fusions of a rule that is to be
skipped; then it is made again without these.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from onnxbolt.errors import InputError
from onnxbolt.options import Options
from onnxbolt.report import Fused
from onnxbolt.spelling import option

_NEAR = 3  # names that a message suggests


@dataclass(frozen=True)
class Skips:
    """The names and rules that a user gave."""

    nodes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Options) -> Skips:
        """The skips among all options."""
        return cls(tuple(options.skip_nodes), tuple(options.skip_rules), tuple(options.only_rules))

    def needs_plan(self, names: Collection[str]) -> bool:
        """True if some of what was given is known only from a plan: rules, and names that are none
        of the source's `names`."""
        return bool(self.rules or self.only) or not set(self.nodes) <= set(names)

    def check(self, names: Iterable[str], fused: Sequence[Fused]) -> None:
        """Raises InputError for a name that neither the source has nor a fused node of the plan
        without skips, and for a rule that none of these follows."""
        own = {row.name: row for row in fused}
        known = {*names, *own}
        problems = [
            f"{option('skip_nodes', name)}: the model has no such node or tensor, and the plan no"
            f" such fused node{near(name, known)}"
            for name in self.nodes
            if name not in known
        ]
        problems += [
            f"{option('skip_nodes', name)}: it replaces no node of the model ({own[name].rule});"
            " name the fused nodes beside it"
            for name in self.nodes
            if name in own and not own[name].source_nodes
        ]
        rules = {row.rule for row in fused if row.source_nodes}
        words = rules | {first_word(rule) for rule in rules}
        problems += [
            f"{option(argument, rule)}: no fusion of this model follows the rule"
            f"{near(rule, words) or _listed(rules)}"
            for argument, given in (("skip_rules", self.rules), ("only_rules", self.only))
            for rule in given
            if rule not in words
        ]
        if problems:
            raise InputError("; ".join(problems))

    def sources(self, fused: Iterable[Fused]) -> frozenset[str]:
        """The source nodes of those fused nodes that are to be skipped."""
        return frozenset(name for row in fused if self._rules_out(row) for name in row.source_nodes)

    def _rules_out(self, row: Fused) -> bool:
        return (
            row.name in self.nodes
            or any(follows(row.rule, rule) for rule in self.rules)
            or bool(self.only and not any(follows(row.rule, rule) for rule in self.only))
        )


def follows(rule: str, asked: str) -> bool:
    """True if `asked` is the rule, or its first word, which stands for all rules that begin with
    it."""
    return asked in (rule, first_word(rule))


def first_word(rule: str) -> str:
    """The word that stands for all rules that begin with it."""
    return rule.partition("+")[0]


def near(name: str, known: Iterable[str]) -> str:
    """The names that look like this one, as the end of a message; empty if there are none."""
    found = difflib.get_close_matches(name, sorted(known), _NEAR)
    return f". Near: {', '.join(found)}" if found else ""


def _listed(rules: Collection[str]) -> str:
    return f". Its rules: {', '.join(sorted(rules))}" if rules else ", because nothing is fused"
