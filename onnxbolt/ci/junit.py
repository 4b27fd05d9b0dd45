"""JUnit's XML, which CI systems show as tests: a suite for each model, with a case for optimizing
it and one for each level of verification."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from onnxbolt.report.several import Outcome, Several
from onnxbolt.terminal import printable
from onnxbolt.verify.result import LEVEL_NAMES, Row

# elements of a case, and the attributes of its suite that count them
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_SHOWN = 20  # rows of a level that failed


def junit(found: Several) -> str:
    """The outcomes as XML. Control characters, which XML cannot hold, are spelled out."""
    root = Element("testsuites", name="onnxbolt")
    for outcome in found.outcomes:
        cases = list(_cases(outcome))
        counts = {
            name: str(sum(case.find(kind) is not None for case in cases))
            for kind, name in _COUNTED.items()
        }
        about = {"tests": str(len(cases)), "time": f"{outcome.seconds:.3f}", **counts}
        suite = SubElement(root, "testsuite", {"name": printable(outcome.model), **about})
        suite.extend(cases)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "utf-8", xml_declaration=True).decode() + "\n"


def _cases(outcome: Outcome) -> Iterator[Element]:
    """The cases of a model. One that failed verification was optimized all the same."""
    name = printable(outcome.model)
    case = Element("testcase", classname=name, name="optimize", time=f"{outcome.seconds:.3f}")
    verification = outcome.report.verification if outcome.report else None
    if outcome.code and not (verification and verification.failures):
        kind = "error" if outcome.code == 1 else "failure"
        _add(case, kind, outcome.message, f"exit code {outcome.code}")
    yield case
    for level, named in LEVEL_NAMES.items() if verification else ():
        rows = verification.at(level) if verification else ()
        case = Element("testcase", classname=name, name=f"verify {named}")
        failed = [row for row in rows if row.failed]
        unjudged = [row for row in rows if row.unjudged]
        if failed:
            _add(case, "failure", f"{len(failed)} of {len(rows)} tensors", _listed(failed))
        elif not rows:
            _add(case, "skipped", "there is nothing to compare")
        elif len(unjudged) == len(rows):
            _add(case, "skipped", "these inputs can judge no tensor", _listed(unjudged))
        yield case


def _add(case: Element, kind: str, message: str, text: str = "") -> None:
    SubElement(case, kind, message=printable(message)).text = printable(text)


def _listed(rows: list[Row]) -> str:
    lines = [f"{row.kind} {row.name} on {row.where}: {row.verdict}" for row in rows[:_SHOWN]]
    more = [f"and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join([*lines, *more])
