"""`python -m tests.support.browser.screenshots [folder]` takes the pictures of the README.

They are of a shop in which something has just broken. Waiting for that takes most of the four minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser

from tests.components.chromium import chromium, running_chromium
from tests.components.process import dies_with_parent, end
from tests.support.browser.running import Up, running_up
from tests.support.browser.visitor import Visitor, visiting

FOLDER = Path(__file__).parents[3] / "docs" / "images"
SIZE = (1440, 900)
BYTES_MAX = 300_000
SETTINGS = {"demo": {"traces_per_second": 1}, "land": {"age_max_seconds": 20}}
"""Demo traffic is called so on every page; what is worth looking at comes from `_breaking_shop`."""
RATE = 15
GOOD_SECONDS, BAD_SECONDS = 100, 50
RANGE = "range=150s&live=false"
"""The good time and the bad one."""
REQUESTS = """SELECT time_bucket(INTERVAL 5 SECONDS, time) AS moment,
       service_name,
       count(*) AS requests,
       round(quantile_cont(duration_nano / 1e6, 0.95), 1) AS p95_ms
FROM spans
WHERE time > now() - INTERVAL 2 MINUTE AND kind = 2
GROUP BY ALL
ORDER BY moment"""
# Of the size that fits a picture, with an error somewhere below its root.
TRACE = """SELECT trace_id FROM spans WHERE time > now() - INTERVAL 3 MINUTE GROUP BY trace_id
ORDER BY count(*) BETWEEN 10 AND 17 DESC, count_if(status_code = 2) BETWEEN 1 AND 4 DESC,
         count(DISTINCT service_name) DESC, max(duration_nano) DESC LIMIT 1"""


def overview(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("overview", RANGE)


def services(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("services", RANGE)
    visitor.find("service-node").first.wait_for()


def service(visitor: Visitor, up: Up) -> None:
    visitor.open(f"services?service=checkout&{RANGE}")
    visitor.find("service-node").first.wait_for()


def patterns(visitor: Visitor, up: Up) -> None:
    visitor.open(f"logs?show=Patterns&{RANGE}")
    visitor.find("pattern").first.wait_for()


def logs(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("logs", RANGE)


def trace(visitor: Visitor, up: Up) -> None:
    found = up.rows(TRACE)[0][0]
    visitor.open(f"traces?trace={found}&{RANGE}")
    visitor.find("waterfall-row").first.wait_for()


def traces(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("traces", RANGE)


def sql(visitor: Visitor, up: Up) -> None:
    visitor.open(f"sql?{urlencode({'q': REQUESTS, 'run': 1})}")
    visitor.page.get_by_role("tab", name="Chart").click()
    visitor.page.locator("[data-testid=stVegaLiteChart] svg").first.wait_for()


def metrics(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("metric", RANGE)


def pipeline(visitor: Visitor, up: Up) -> None:
    visitor.open_with_data("pipeline", RANGE)


PICTURES: dict[str, Callable[[Visitor, Up], None]] = {
    "overview": overview,
    "overview-dark": overview,
    "services": services,
    "services-dark": services,
    "service": service,
    "patterns": patterns,
    "logs": logs,
    "traces": traces,
    "trace": trace,
    "trace-dark": trace,
    "sql": sql,
    "metrics": metrics,
    "pipeline": pipeline,
}


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    program = chromium()
    with (
        tempfile.TemporaryDirectory(prefix="frazil-pictures-") as place,
        running_up(Path(place), SETTINGS) as up,
        running_chromium(program) as browser,
        _breaking_shop(up),
    ):
        for name, show in PICTURES.items():
            path = folder / f"{name}.png"
            _take(browser, up, path, show)
            print(f"{path}: {path.stat().st_size:,} bytes", flush=True)
            assert path.stat().st_size <= BYTES_MAX
    return 0


@contextmanager
def _breaking_shop(up: Up) -> Iterator[None]:
    """A shop that has been well, and has been failing for a while. It goes on until the block ends."""
    incident = ["--incident=errors", f"--incident-after={GOOD_SECONDS}s", "--incident-length=1h"]
    command = [sys.executable, "-m", "frazil", "--config", up.config_path, "demo", f"--rate={RATE}"]
    print(f"sending the telemetry of a shop; pictures in {GOOD_SECONDS + BAD_SECONDS} s", flush=True)
    shop = subprocess.Popen(dies_with_parent([*command, *incident, "--seed=7"]), stdout=subprocess.DEVNULL)
    try:
        time.sleep(GOOD_SECONDS + BAD_SECONDS)
        yield
    finally:
        end(shop)


def _take(browser: Browser, up: Up, path: Path, show: Callable[[Visitor, Up], None]) -> None:
    with visiting(browser, up.url, dark=path.stem.endswith("-dark"), size=SIZE) as visitor:
        show(visitor, up)
        visitor.page.mouse.move(0, 0)
        visitor.page.wait_for_timeout(1500)  # what charts move, they have moved by then
        visitor.settle()
        visitor.page.screenshot(path=path)


if __name__ == "__main__":
    sys.exit(main())
