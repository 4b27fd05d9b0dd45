"""A real browser: Debian's headless Chromium, driven by Playwright.

.ci/run installs the browser and names it in ONNXBOLT_TEST_BROWSER, so that the tests fail without
it. Elsewhere they are skipped where it is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "chromium-headless-shell"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    required = os.environ.get("ONNXBOLT_TEST_BROWSER")
    path = required or shutil.which(CHROMIUM)
    if required and not Path(required).exists():
        pytest.fail(f"ONNXBOLT_TEST_BROWSER names {required}, which does not exist")
    if not path:
        pytest.skip(f"no {CHROMIUM}; on Debian and Ubuntu: apt-get install {CHROMIUM}")
    with sync_playwright() as playwright:
        # root has no sandbox; the pages are our own
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
