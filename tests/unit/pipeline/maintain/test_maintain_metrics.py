"""Metrics of maintenance."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from frazil.config import MaintainConfig
from frazil.lake.state.health import health
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TaskReport


def test_each_task_counts_what_it_did() -> None:
    registry = CollectorRegistry()
    metrics = MaintainMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"table": "logs", **labels})

    metrics.record(TaskReport("compact", "logs", False, 32, 1, 1000, 800, 5000, 3, 2.0, 1.5))
    metrics.record(TaskReport("compact", "logs", False, 8, 1, 200, 100, 50))
    metrics.record(TaskReport("compact", "logs", True, 500, 1, 10_000, 10_000, 10_000))
    assert value("frazil_compacted_files_in_total") == 40
    assert value("frazil_compacted_files_out_total") == 2
    assert value("frazil_compacted_bytes_in_total") == 1200
    assert value("frazil_compacted_bytes_out_total") == 900
    assert value("frazil_compacted_rows_total") == 5050
    assert value("frazil_removed_rows_total", reason="identical") == 3
    assert value("frazil_maintain_worker_cpu_seconds_total", task="compact") == 1.5
    metrics.record(TaskReport("retention", "logs", rows_removed=70))
    metrics.removed_rows("logs", "erasure", 9)
    assert value("frazil_removed_rows_total", reason="retention") == 70
    assert value("frazil_removed_rows_total", reason="erasure") == 9
    metrics.record(TaskReport("expire", "logs", detail={"snapshots": 12}))
    assert value("frazil_expired_snapshots_total") == 12
    metrics.record(TaskReport("orphans", "logs", files_in=2, bytes_in=99))
    assert value("frazil_removed_orphans_total") == 2
    assert value("frazil_removed_orphan_bytes_total") == 99


def test_runs_are_counted_by_outcome() -> None:
    registry = CollectorRegistry()
    metrics = MaintainMetrics(registry)
    metrics.record_run("expire", "logs", "failed", 0.2)
    labels = {"task": "expire", "table": "logs"}
    assert registry.get_sample_value("frazil_maintain_last_timestamp_seconds", labels) is None
    metrics.record_run("expire", "logs", "nothing", 0.2)
    metrics.record_run("expire", "logs", "done", 20.0)
    for outcome in ("failed", "nothing", "done"):
        assert registry.get_sample_value("frazil_maintain_runs_total", {**labels, "outcome": outcome}) == 1
    assert registry.get_sample_value("frazil_maintain_seconds_count", {"task": "expire"}) == 3
    assert registry.get_sample_value("frazil_maintain_seconds_sum", {"task": "expire"}) == 20.4
    assert registry.get_sample_value("frazil_maintain_last_timestamp_seconds", labels) is not None


def test_the_health_of_a_table_is_shown_with_it() -> None:
    registry = CollectorRegistry()
    MaintainMetrics(registry).health("logs", health([], MaintainConfig(), 0.0))
    assert registry.get_sample_value("frazil_table_files", {"table": "logs"}) == 0
