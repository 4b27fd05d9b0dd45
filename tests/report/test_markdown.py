"""Reports as Markdown: no name of a model, a file or a task is read as Markdown or as HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from onnxbolt.candidates import Refusal
from onnxbolt.pipeline import optimize
from onnxbolt.precision import Kept
from onnxbolt.report import Report
from onnxbolt.report.data import ReportData
from onnxbolt.report.verification import Verification
from onnxbolt.tune.summary import TunedTask, Tuning, WholeModel
from onnxbolt.verify.result import VerifyResult
from tests.support import Net

MARK = "HOSTILE"
HOSTILE = (
    f"{MARK} | a bar | and a \\| third",
    f"`{MARK}` and ``{MARK}``",
    f"{MARK}\n\n# {MARK}\r\n| {MARK} |",
    f"<script>{MARK}</script>",
    f"[{MARK}](javascript:alert) ![{MARK}](http://example.com/x)",
    f"**{MARK}** _{MARK}_ ~~{MARK}~~ &lt;{MARK}&gt;",
    f"\\ {MARK} \\",
    f"\u2028{MARK}\x1b[31m",
)


@cache
def plain_report() -> Report:
    net = Net({"x": (2, 16, 8, 8)})
    y = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    y = net.node("Exp", net.linear(net.node("Flatten", y), 1024, 8))
    return optimize(net.model(y), fuse="all", library=False, archs=("sm_80", "sm_90a"))


def hostile_report(text: str) -> Report:
    """A report with `text` wherever a name of a model may be, in texts about names included."""
    report = plain_report()
    fused = tuple(
        dataclasses.replace(node, name=text, op=text, tensor=text, rule=text, configs=(text, text))
        for node in report.fused
    )
    assert report.verification is not None
    tasks = (TunedTask(text, "gemm", 1, 2, 0, 3.0, 2.0, 9.0, text),)
    whole = WholeModel(10.0, 20.0, dropped=(text, text))
    return dataclasses.replace(
        report,
        fused=fused,
        refusals=(
            Refusal(text, text, f"{text}: {text}", remedy=text, body=text),
            Refusal(text, text, text, body=text, apart=True),
        ),
        kept=(Kept(text, text, f"{text}: {text}", body=text),),
        changes=(text,),
        shared_weights=(text,),
        skips=text,
        skipped=(text,),
        original=text,
        optimized=text,
        regions=tuple(dataclasses.replace(each, region=text) for each in report.regions),
        tuning=Tuning(tasks, (), 1.0, 2, 1, whole=whole, notes=(text,)),
        verification=hostile_result(report.verification, text),
    )


def hostile_result(result: VerifyResult, text: str) -> VerifyResult:
    verdicts: Sequence[dict[str, Any]] = ({}, {"unjudged": text}, {"reason": text})
    rows = tuple(
        dataclasses.replace(
            row, name=text, body=text, node=text, sizes=text, passed=not verdict, **verdict
        )
        for row in result.rows
        for verdict in verdicts
    )
    return dataclasses.replace(result, rows=rows, notes=(text,))


def tokens(markdown: str) -> list[Token]:
    """All tokens as GitHub reads them, those within lines included."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return [token for block in parser.parse(markdown) for token in (block, *(block.children or ()))]


def check(markdown: str, expected: str) -> None:
    """Hostile texts are in code spans alone, and the document has the blocks of `expected`."""
    found = tokens(markdown)
    for token in found:
        assert not token.type.startswith(("html", "link", "image", "strong", "em_", "s_"))
        assert token.type in ("inline", "code_inline") or MARK not in token.content
    assert any(MARK in token.content for token in found if token.type == "code_inline")
    blocks = [[token.type for token in each if token.block] for each in (found, tokens(expected))]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_a_report_are_no_markdown(text: str) -> None:
    check(hostile_report(text).markdown(), hostile_report(MARK).markdown())


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_a_reason_to_write_a_model_unchanged_are_no_markdown(text: str) -> None:
    of = [Report.unchanged(reason, [90]).between(text, None) for reason in (text, MARK)]
    assert isinstance(of[0], ReportData)
    check(of[0].markdown(), of[1].markdown())


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_a_verification_are_no_markdown(text: str) -> None:
    result = plain_report().verification
    assert result is not None
    of = [
        Verification(Path(name), Path(f"{name}.onnx"), hostile_result(result, name)).markdown()
        for name in (text, MARK)
    ]
    check(*of)
