"""The console in a real browser: a live one to look at, and what each test does first. Needs Playwright."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page, expect

from ignis import Ignis
from tests.support import WAIT_S
from tests.support.console import PASSWORD, write_users

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOTS = Path(os.environ.get("IGNIS_SCREENSHOTS") or Path(__file__).parents[2] / "build" / "screenshots")
BOUND_MS = WAIT_S * 1_000


class ConsoleProcess:
    """`ignis console` in a process of its own. Attributes: ``url`` of its pages; `kill` and `start` again keep the port."""

    def __init__(self, directory: Path, url: str, *options: object) -> None:
        self._directory = directory
        self._command = [sys.executable, "-m", "ignis", "console", "--url", url, *map(str, options), "--json"]
        self._port = 0
        self.start()

    def start(self) -> None:
        with (self._directory / "console.err").open("a") as errors:
            self._process = subprocess.Popen(
                [*self._command, "--bind", f"127.0.0.1:{self._port}"], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._killed = False
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]
        self._port = urlsplit(self.url).port or 0

    def kill(self) -> None:
        self._process.kill()
        self._end()
        self._killed = True

    def close(self) -> None:
        if not self._killed:
            self._process.terminate()
            assert self._end() == 0

    def _end(self) -> int:
        code = self._process.wait(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class Live:
    """A console of its own process, and an application with a worker on the same store."""

    def __init__(self, directory: Path) -> None:
        self.users = directory / "users.json"
        self.audit = directory / "audit"
        write_users(self.users)
        url = f"embedded://{directory}/store"
        self.app = Ignis(url)
        self.handled: list[Any] = []
        self.jobs = self.app.queue("jobs", dict, shards=2)
        self.idle = self.app.queue("idle", dict, shards=1)  # nobody works on it
        self.idle.open()
        self.jobs.handler(self._handle)
        self.app.start()
        self.console = ConsoleProcess(directory, url, "--users", self.users, "--audit", self.audit)
        self.url = self.console.url

    def _handle(self, message: dict[str, Any]) -> None:
        self.handled.append(message)

    def close(self) -> None:
        try:
            self.console.close()
        finally:
            self.app.close(timeout=5)


def kept(page: Page, name: str) -> None:
    """Keeps what the page looks like for people: below build/screenshots, or where IGNIS_SCREENSHOTS says."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, animations="disabled")


def log_in(page: Page, live: Live, user: str, path: str = "") -> None:
    page.goto(live.url + path)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_contain_text(user)


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page, and what went wrong in it: scripts that failed, and what the content policy has refused."""
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda said: wrong.append(said.text) if said.type == "error" and "status of 4" not in said.text else None,
    )
    return page, wrong
