"""Somebody with a browser: opens pages, waits for what they show, and notes everything that is amiss."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Request, Response, expect

SECONDS_MAX = 45.0
"""Pages are quick; machines that run other tests beside are not."""
SMALL_SCREEN = (1366, 768)


@dataclass(frozen=True)
class Shown:
    path: str
    heading: str
    data: str
    """What is there when the page has something to show."""


PAGES = {
    "overview": Shown("", "Overview", "[data-testid=stDataFrame] canvas"),
    "services": Shown("services", "Services", "[data-testid=service-row]"),
    "logs": Shown("logs", "Logs", "[data-testid=record]"),
    "traces": Shown("traces", "Traces", "[data-testid=trace-row]"),
    "metric": Shown("metric", "Metrics", "[data-testid=stVegaLiteChart] svg"),
    "sql": Shown("sql", "SQL", "[data-testid=sql-tables] .table"),
    "pipeline": Shown("pipeline", "Pipeline", "[data-testid=stDataFrame] canvas"),
}
expect.set_options(timeout=SECONDS_MAX * 1000)
_IDLE = "[data-testid=stApp][data-test-script-state=notRunning]"


class Visitor:
    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.page = context.new_page()
        self.page.set_default_timeout(SECONDS_MAX * 1000)
        self.amiss: list[str] = []
        """Errors of scripts and in the console, and what the page wanted from other hosts."""
        self.asked: list[str] = []
        """Paths of this dashboard that were requested."""
        self._host = urlsplit(url).netloc
        self.page.on("request", self._note_request)
        self.page.on("websocket", lambda socket: self._note_address(socket.url))
        self.page.on("pageerror", lambda error: self.amiss.append(f"error: {error}"))
        self.page.on("console", self._note_console)
        self.page.on("response", self._note_response)

    def open(self, path: str) -> None:
        """The path and its parameters; waits until the server has said all that it has to say."""
        self.page.goto(f"{self.url}/{path.lstrip('/')}")
        self.settle()

    def open_with_data(self, page: str, parameters: str = "") -> None:
        shown = PAGES[page]
        self.open(f"{shown.path}?{parameters}" if parameters else shown.path)
        self.heading(shown.heading)
        self.page.locator(shown.data).first.wait_for()
        self.settle()

    def settle(self) -> None:
        self.page.locator(_IDLE).wait_for()

    def heading(self, text: str) -> None:
        self.page.locator("h1", has_text=re.compile(f"^{re.escape(text)}$")).wait_for()

    def says(self, text: str | re.Pattern[str]) -> Locator:
        """Waits until it is somewhere on the page to be read."""
        found = self.page.get_by_text(text).filter(visible=True).first
        found.wait_for()
        return found

    def find(self, testid: str) -> Locator:
        """Also within our own components."""
        return self.page.locator(f"[data-testid={testid}]")

    def search_logs(self, words: str) -> None:
        box = self.page.locator(".st-key-q input")
        box.fill(words)
        box.press("Enter")

    def run_sql(self, sql: str) -> None:
        self.find("sql-text").fill(sql)
        self.find("sql-text").press("Control+Enter")

    def cells(self) -> Locator:
        """Of tables that are painted: what they say to those who cannot see them."""
        return self.page.locator("[data-testid=stDataFrame] canvas td")

    def expect_url(self, pattern: str) -> None:
        expect(self.page).to_have_url(re.compile(pattern))

    def _is_here(self, address: str) -> bool:
        parts = urlsplit(address)
        return parts.scheme in ("data", "blob", "about") or parts.netloc == self._host

    def _note_address(self, address: str) -> None:
        if not self._is_here(address):
            self.amiss.append(f"asks elsewhere: {address}")

    def _note_request(self, request: Request) -> None:
        self._note_address(request.url)
        self.asked.append(urlsplit(request.url).path)

    def _note_response(self, response: Response) -> None:
        if response.status >= 400:
            self.amiss.append(f"status {response.status}: {response.url}")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.amiss.append(f"console: {message.text} ({message.location['url']})")


@contextmanager
def visiting(
    browser: Browser, url: str, *, dark: bool = False, size: tuple[int, int] = SMALL_SCREEN
) -> Iterator[Visitor]:
    """A person of their own: no cookies, nothing remembered."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        device_scale_factor=1,
        timezone_id="America/New_York",  # everything is shown in UTC, wherever one looks from
        locale="en-GB",
    )
    try:
        yield Visitor(context, url)
    finally:
        context.close()


def seconds_until(shown: Locator, since: float) -> float:
    """From `since` (of time.perf_counter) until it is there to be seen."""
    shown.first.wait_for()
    return time.perf_counter() - since
