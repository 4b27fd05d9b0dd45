"""The result of `onnxbolt verify` as JSON and Markdown."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxbolt.graph.bodies import located
from onnxbolt.report.markdown import code, plain, table
from onnxbolt.verify.result import VerifyResult
from onnxbolt.version import __version__

FORMAT = 1
_HEADER = ("tensor", "level", "kind", "on", "error", "limit", "max abs", "cosine", "verdict")


@dataclass(frozen=True)
class Verification:
    """A result with the paths of the two models."""

    original: Path
    optimized: Path
    result: VerifyResult

    def json(self) -> str:
        """The result as JSON, keys sorted."""
        about = {
            "format": FORMAT,
            "version": __version__,
            "original": str(self.original),
            "optimized": str(self.optimized),
        }
        return json.dumps(about | as_dict(self.result), indent=2, sort_keys=True)

    def markdown(self) -> str:
        """Every row as Markdown; the last line is the verdict."""
        title = (
            f"# onnxbolt {__version__}\n\n"
            f"{code(str(self.original))} and {code(str(self.optimized))}"
        )
        return "\n\n".join(
            (
                title,
                rows_as_table(self.result),
                self.result.summary(code).replace("\n", "\n\n"),
                *map(code, self.result.notes),
                self.result.verdict,
            )
        )


def as_dict(result: VerifyResult) -> dict[str, Any]:
    """The fields of a result, and `passed`, `judged` and `verdict`, which follow from them."""
    found: dict[str, Any] = plain(dataclasses.asdict(result))
    return found | {"passed": result.passed, "judged": result.judged, "verdict": result.verdict}


def rows_as_table(result: VerifyResult) -> str:
    """All rows in Markdown, in which no name is read as Markdown."""
    return table(
        _HEADER,
        [
            (
                code(located(row.name, row.body)),
                row.level,
                row.kind,
                code(row.where),
                f"{row.error:.2e}",
                f"{row.limit:.2e}",
                f"{row.max_abs:.2e}",
                f"{row.cosine:.6f}",
                row.verdict if row.passed else code(row.verdict),
            )
            for row in result.rows
        ],
    )
