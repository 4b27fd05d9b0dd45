"""The tests' call of compute-sanitizer, with a program in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import sanitizer

# prints what it was called with as well
_TOOL = """#!/bin/sh
echo "$@"
echo "{said}"
exit {status}
"""


@pytest.mark.parametrize(
    ("said", "status", "is_right"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, True),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, True),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)", 17, False),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", 0, False),
        ("========= Error: No attachable process found. compute-sanitizer timed-out.", 0, False),
        ("========= ERROR SUMMARY: 0 errors", 1, False),
    ],
)
def test_it_is_right_where_the_tool_saw_all_and_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int, is_right: bool
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(_TOOL.format(said=said, status=status))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if is_right:
        sanitizer.check("racecheck", "tests.gpu.run_family", "out.so", "pool")
        return
    with pytest.raises(AssertionError) as error:
        sanitizer.check("racecheck", "tests.gpu.run_family", "out.so", "pool")
    assert f"status {status}\n--tool racecheck --error-exitcode 17" in str(error.value)
    assert "-m tests.gpu.run_family out.so pool" in str(error.value)
    assert said in str(error.value)
