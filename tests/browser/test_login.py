"""With API keys: no page without one, and with one only what it may see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from playwright.sync_api import expect

from frazil.keys import new_key
from tests.browser.conftest import Visit
from tests.components.process import free_port
from tests.support.browser.running import Parts, Place, running_dashboard, running_parts
from tests.support.browser.telemetry import log, marked
from tests.support.browser.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROLES = {"shop": ["read", "write"], "bank": ["read"]}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = {tenant: new_key(tenant) for tenant in ROLES}
    entries = [
        {"name": f"key-{tenant}", "tenant": tenant, "hash": digest, "roles": ROLES[tenant]}
        for tenant, (_, digest) in made.items()
    ]
    keys = {tenant: key for tenant, (key, _) in made.items()}
    with running_parts(tmp_path_factory.mktemp("locked"), {"auth": {"keys": entries}}, keys) as running:
        yield running


def log_in(visitor: Visitor, key: str) -> None:
    visitor.page.get_by_label("API key").fill(key)
    visitor.page.get_by_role("button", name="Log in").click()


def test_a_key_opens_the_page_that_was_wanted_and_logging_out_closes_it(visit: Visit, locked: Parts) -> None:
    word = marked("inside")
    locked.send("logs", log(f"{word} the shop", "till"), locked.keys["shop"])
    visitor = visit(locked)
    wanted = f"{locked.url}/logs?q={word}"
    visitor.page.goto(wanted)
    visitor.expect_url("/login")
    log_in(visitor, "fz_shop_wrong")
    visitor.says("API key")
    expect(visitor.page.locator(".error")).not_to_be_empty()
    assert [note for note in visitor.amiss if "401" not in note] == []
    visitor.amiss.clear()
    log_in(visitor, locked.keys["shop"])
    expect(visitor.find("record-text")).to_have_text(f"{word} the shop")
    visitor.expect_url(rf"/logs\?.*q={word}")
    assert locked.keys["shop"] not in visitor.page.content()

    expect(visitor.page.get_by_role("link", name="Log out")).to_have_attribute("href", "/logout")
    visitor.page.goto(f"{locked.url}/logout")
    visitor.expect_url("/login$")
    visitor.page.goto(wanted)
    visitor.expect_url("/login")


def test_a_key_sees_its_tenant_alone_and_is_told_kindly_what_it_may_not_see(
    visit: Visit, locked: Parts
) -> None:
    word = marked("secret")
    locked.send("logs", log(f"{word} of the shop", "till"), locked.keys["shop"])
    visitor = visit(locked)
    visitor.page.goto(f"{locked.url}/logs?q={word}")
    log_in(visitor, locked.keys["bank"])
    visitor.says("No logs yet")
    assert word not in visitor.page.inner_text("[data-testid=stMain]")
    visitor.open("sql?q=SELECT+count(*)+AS+lines+FROM+logs&run=1")
    expect(visitor.cells()).to_have_text(["0"])
    visitor.open("pipeline")
    visitor.says("needs a key with the role")
    assert visitor.page.locator(".fz-card").count() == 0


def test_a_page_that_is_left_open_ends_with_its_login(visit: Visit, locked: Parts) -> None:
    """It refreshes by itself all the while."""
    config = yaml.safe_load((locked.folder / "frazil.yaml").read_text())
    config["dashboard"] = {"listen": f"127.0.0.1:{free_port()}", "session_seconds": 20}
    path = locked.folder / "soon" / "frazil.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(config))
    with running_dashboard(path) as url:
        visitor = visit(Place(locked.folder, url, locked.otlp, locked.api))
        visitor.page.goto(f"{url}/logs?tail=true")
        log_in(visitor, locked.keys["shop"])
        visitor.heading("Logs")
        visitor.says("Your session has expired.")
        expect(visitor.page.locator("h1")).to_have_count(0)
        visitor.page.get_by_role("link", name="Log in").click()
        visitor.expect_url("/login$")
