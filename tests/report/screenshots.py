"""Writes the pictures of docs/report.md: python -m tests.report.screenshots

The report is that of the zoo's BERT, planned for an H200. Pictures have few colours, so that they
are small.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

import onnx
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from onnxbolt.pipeline import optimize
from tests.conftest import ROOT, ZOO
from tests.report.conftest import CHROMIUM
from tests.zoo.materialize import materialize

OUT = ROOT / "docs" / "figures"
SIZE: ViewportSize = {"width": 1280, "height": 800}
COLOURS = 128


def main() -> int:
    browser_path = shutil.which(CHROMIUM)
    if browser_path is None:
        print(f"error: {CHROMIUM} is missing", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        source, page_file = Path(folder) / "bert_base.onnx", Path(folder) / "report.html"
        onnx.save(
            materialize(onnx.load(ZOO / "bert_base.ts.onnx", load_external_data=False)), source
        )
        report = optimize(source, library=False, verify=False, archs=("sm_90a",))
        page_file.write_text(report.html().replace(folder, "models"), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        picture(opened(browser, "light", page_file), "report-overview")
        page = opened(browser, "dark", page_file)
        page.get_by_role("tab", name="Model").click()
        search = page.get_by_placeholder("Search names")
        search.fill("gemm+GeluErf")
        page.keyboard.press("Enter")
        search.fill("")
        picture(page, "report-model-dark")
        browser.close()
    return 0


def opened(browser: Browser, scheme: Literal["light", "dark"], file: Path) -> Page:
    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
    page.goto(file.as_uri())
    return page


def picture(page: Page, name: str) -> None:
    """Write what is visible as a PNG of few colours."""
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(OUT / f"{name}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
