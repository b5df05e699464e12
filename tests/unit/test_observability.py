"""What operators hold in their hands fits the code: names of metrics, dashboard, rules and runbook."""

from __future__ import annotations

import ast
import functools
import json
import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from typer.main import get_command

from frazil.cli import app
from frazil.config import Config
from frazil.dashboard import api_client, login
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.query.metrics import QueryMetrics
from frazil.receive.metrics import ReceiverMetrics
from frazil.role_metrics import RoleCollector
from frazil.serve.middleware import ResponseMiddleware
from frazil.storage import metrics as store_metrics
from frazil.telemetry.session import _counter

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
NAME = re.compile(r"\bfrazil_[a-z0-9_]+\b")
RECORDED = re.compile(r"\bfrazil:[a-z0-9_]+:[a-z0-9_]+\b")
UNITS = ("_seconds", "_bytes", "_total", "_info")
COUNTS = {  # gauges and histograms of things that are counted
    "frazil_dashboard_sockets", "frazil_derive_days_left", "frazil_derive_disabled", "frazil_derive_failing",
    "frazil_derive_series_limited_tenants", "frazil_derive_series_max", "frazil_derive_stopped",
    "frazil_derive_unmatched_max", "frazil_derive_view",
    "frazil_land_commit_files", "frazil_land_pending_segments", "frazil_land_stopped",
    "frazil_maintain_failing",
    "frazil_pipeline_leader", "frazil_process_count", "frazil_process_open_files", "frazil_queries_running",
    "frazil_queries_waiting", "frazil_receive_ready_workers", "frazil_retention_held", "frazil_table_files",
    "frazil_table_files_per_moment", "frazil_table_manifests", "frazil_table_monthly_cost",
    "frazil_table_rows", "frazil_table_small_files", "frazil_table_snapshots", "frazil_wal_landed_segments",
}  # fmt: skip
BOUNDED_LABELS = {
    "kind", "objective", "operation", "outcome", "page", "reason", "role", "route", "signal", "source",
    "status", "store", "table", "task", "transport", "version",
}  # fmt: skip


class Described(NamedTuple):
    kind: str
    labels: frozenset[str]


@pytest.fixture(scope="module")
def metrics() -> Iterator[Mapping[str, Described]]:
    """Every metric of every role, as it is scraped."""
    config = Config()
    receiver, pipeline, query = ReceiverMetrics(config).registry, Metrics(config), QueryMetrics(config)
    landing = pipeline.registry
    MaintainMetrics(landing)
    DeriveMetrics(landing, config, pipeline.objectives)
    ResponseMiddleware(cast(Any, None), query.registry, cast(Any, None))
    _counter(query.registry)
    shown = CollectorRegistry()
    shown.register(api_client.REQUESTS)
    shown.register(api_client.SECONDS)
    shown.register(login.SOCKETS)
    shown.register(login.REFUSED)
    registries = (receiver, landing, query.registry, shown)
    yield functools.reduce(operator.or_, map(_described, registries)) | _role_metrics(config)
    store_metrics.listen(None)


def _described(registry: CollectorRegistry) -> dict[str, Described]:
    found = {}
    collectors: Any = registry._collector_to_names
    for collector in collectors:
        (metric,) = collector.describe()
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        found[name] = Described(metric.type, frozenset(collector._labelnames))
    return found


def _role_metrics(config: Config) -> dict[str, Described]:
    found = {}
    for metric in RoleCollector("pipeline", config).collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        found[name] = Described(metric.type, frozenset(metric.samples[0].labels))
    return found


def documented() -> dict[str, Described]:
    """The rows of the tables of docs/metrics.md."""
    found = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(frazil_[a-z0-9_]+)` \| (\w+) \| ([^|]*)\| (.+) \|$", line):
            name, kind, labels, meaning = match.groups()
            assert name not in found, f"{name} is there twice"
            assert meaning.strip()
            found[name] = Described(
                kind, frozenset(filter(None, (each.strip() for each in labels.split(","))))
            )
    return found


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "frazil.json").read_text())
    return found


def dashboard_queries() -> list[str]:
    board = dashboard()
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return queries + [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def unknown_in(expression: str, metrics: Mapping[str, Described]) -> set[str]:
    """Names that no role exposes, with the samples that histograms have."""
    known = set(metrics)
    for name, described in metrics.items():
        if described.kind == "histogram":
            known |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
            known.discard(name)
    return set(NAME.findall(expression)) - known


def labels_used(expression: str) -> set[str]:
    """In selectors and aggregations."""
    used = set(re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        used |= {label.strip() for label in group.split(",") if label.strip()}
    return used


def test_every_metric_is_documented_with_its_kind_and_labels_and_nothing_else_is(
    metrics: Mapping[str, Described],
) -> None:
    assert documented() == dict(metrics)


def test_every_name_of_a_metric_in_the_source_is_one_that_a_role_exposes(
    metrics: Mapping[str, Described],
) -> None:
    exposed = {name.removesuffix("_total") for name in metrics}
    for file in (ROOT / "src").rglob("*.py"):
        if "prometheus_client" not in (text := file.read_text()):
            continue
        named = {
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
        }
        assert {name.removesuffix("_total") for name in named} <= exposed, file


def test_names_end_with_their_unit_and_labels_are_bounded(metrics: Mapping[str, Described]) -> None:
    assert {name for name in metrics if not name.endswith(UNITS)} == COUNTS
    for name, described in metrics.items():
        assert (described.kind == "counter") == name.endswith("_total"), name
        assert described.labels <= BOUNDED_LABELS, name


def test_the_dashboard_asks_only_for_metrics_and_labels_that_are_there(
    metrics: Mapping[str, Described],
) -> None:
    labels = {label for described in metrics.values() for label in described.labels}
    for query in dashboard_queries():
        assert not unknown_in(query.removeprefix("label_values(frazil_build_info"), metrics), query
        assert labels_used(query) <= labels | {"frazil", "job", "instance", "le"}, query


def test_every_panel_says_what_it_shows_and_in_which_unit_and_none_lies_over_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_the_rules_use_only_metrics_and_labels_that_are_there(metrics: Mapping[str, Described]) -> None:
    labels = {label for described in metrics.values() for label in described.labels}
    recorded = {rule["record"] for rule in rules("recording.yml")}
    for rule in rules("recording.yml") + rules("alerts.yml"):
        assert not unknown_in(rule["expr"], metrics), rule
        assert set(RECORDED.findall(rule["expr"])) <= recorded, rule
        assert labels_used(rule["expr"]) <= labels | {"frazil", "job", "instance", "le"}, rule


def test_every_alert_says_how_bad_it_is_with_its_value_and_where_to_read_on() -> None:
    for rule in rules("alerts.yml"):
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}", name
        is_yes_or_no = name in (
            "FrazilRoleDown",
            "FrazilNoLeader",
            "FrazilReceiverNotReady",
            "FrazilTableStopped",
            "FrazilDeriveFailing",
            "FrazilDeriveStopped",
            "FrazilRetentionHeld",
        )
        assert is_yes_or_no != ("$value" in rule["annotations"]["summary"]), name


def test_every_alert_has_its_entry_in_the_runbook_and_every_entry_its_alert() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    entries = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(entries) == {rule["alert"] for rule in rules("alerts.yml")}
    for name, entry in entries.items():
        for part in ("Meaning", "User impact", "Check", "Action", "Escalate if"):
            assert f"- **{part}:** " in entry, f"{name} lacks {part}"
    anchors = set(re.findall(r"\]\(#([a-z]+)\)", text))
    assert anchors <= {name.lower() for name in entries}


def test_the_runbook_names_only_commands_settings_and_metrics_that_exist(
    metrics: Mapping[str, Described],
) -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for word in re.findall(r"(?:`|^)frazil ([a-z]+)", text, re.MULTILINE):
        assert word in commands, word
    for option in re.findall(r"frazil \w+ [^`\n]*?(--[a-z-]+)", text):
        assert any(option in parameter.opts for each in commands.values() for parameter in each.params), (
            option
        )
    for key in re.findall(r"`([a-z0-9_]+(?:\.[a-z0-9_]+)+)(?::[^`]*)?`", text):
        if key.partition(".")[0] in Config.model_fields:
            assert _is_setting(key), key
    # In prose a histogram goes by its own name.
    assert {name for name in unknown_in(text, metrics) if name not in metrics} == set()


def _is_setting(key: str) -> bool:
    model: Any = Config
    for part in key.split("."):
        models = [model, *getattr(model, "__args__", ())]
        fields = [
            each.model_fields for each in models if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        found = [field[part] for field in fields if part in field]
        if not found:
            return False
        model = found[0].annotation
    return True
