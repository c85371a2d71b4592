"""A browser for all tests of a file, and for each test a console with an application and a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # an extra
    from playwright.sync_api import Browser, BrowserContext

    from tests.support.console_browser import Live


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    from tests.support.console_browser import CHROMIUM

    with sync_playwright() as driver:
        # Without a sandbox only as root, who has none: the pages are our own.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    from tests.support.console_browser import Live

    made = Live(tmp_path)
    yield made
    made.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    from playwright.sync_api import expect

    from tests.support.console_browser import BOUND_MS

    made = browser.new_context(viewport={"width": 1200, "height": 900})
    made.set_default_timeout(BOUND_MS)
    expect.set_options(timeout=BOUND_MS)
    yield made
    made.close()
