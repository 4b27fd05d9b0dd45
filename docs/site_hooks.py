"""Hooks of mkdocs.yml: pages of the repository's root join the site, and links fit it.

Pages are written to be read in the repository, where README.md links docs/tuning.md, and
docs/deploy.md links ../SECURITY.md. On the site all pages lie in one folder. Links to files that
are not on the site, such as sources, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# pages of the repository's root by their places on the site
ROOT_PAGES = {
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)"
)


def on_config(config: MkDocsConfig) -> None:
    """A folder's name in the navigation stands for the folder's pages."""
    config.nav = [_with_folders(entry) for entry in config.nav or []]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the repository's root."""
    for place, name in ROOT_PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they are on the site."""
    place = page.file.src_uri

    def fitted(link: re.Match[str]) -> str:
        target = link["target"]
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        path = _resolved(place, target)
        if not (ROOT / path).exists():
            return link[0]  # mkdocs reports it
        on_site = _place(path)
        if on_site is None or files.get_file_from_path(on_site) is None:
            return link["text"]
        relative = posixpath.relpath(on_site, posixpath.dirname(place) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if index % 2 else _LINK.sub(fitted, part) for index, part in enumerate(parts)
    )


def _resolved(place: str, target: str) -> str:
    """The path in the repository that a link of the page at `place` names."""
    folder = "" if place in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(place))
    return posixpath.normpath(posixpath.join(folder, target))


def _place(path: str) -> str | None:
    """A repository's path on the site, None for files that are not there."""
    for place, name in ROOT_PAGES.items():
        if path == name:
            return place
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _with_folders(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _with_folders(inside) for title, inside in entry.items()}
    if isinstance(entry, list):
        return [_with_folders(inside) for inside in entry]
    folder = ROOT / "docs" / entry
    if folder.is_dir():
        return [f"{entry}/{page.name}" for page in sorted(folder.glob("*.md"))]
    return entry
