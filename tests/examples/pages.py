"""Commands of the documentation, so that tests run what a reader runs."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def commands(page: str, language: str = "sh") -> list[str]:
    """The commands of a page's blocks in `language`, each with the lines that it is continued
    on."""
    text = (ROOT / page).read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def command(page: str, beginning: str, language: str = "sh") -> str:
    """The one command of a page that begins so."""
    (found,) = (line for line in commands(page, language) if line.startswith(beginning))
    return found
