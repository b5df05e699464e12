"""OTLP in JSON that tests send and then look for: everything in it is of now."""

from __future__ import annotations

import os
import time
from typing import Any


def marked(what: str) -> str:
    """A word that nothing else has said."""
    return f"{what}{os.urandom(5).hex()}"


def log(text: str, service: str, *, severity: int = 9, trace: str = "", span: str = "") -> dict[str, Any]:
    record: dict[str, Any] = {
        "timeUnixNano": str(time.time_ns()),
        "severityNumber": severity,
        "severityText": {9: "INFO", 13: "WARN", 17: "ERROR"}[severity],
        "body": {"stringValue": text},
        "attributes": [_attribute("test.text", text), {"key": "test.count", "value": {"intValue": "7"}}],
    }
    record |= {"traceId": trace, "spanId": span} if trace else {}
    return {"resourceLogs": [{"resource": _of(service), "scopeLogs": [{"logRecords": [record]}]}]}


def span(
    name: str, service: str, trace: str, id: str, parent: str = "", *, error: str = ""
) -> dict[str, Any]:
    """It ended now and took 40 ms, or 20 below a parent."""
    now = time.time_ns()
    made: dict[str, Any] = {
        "traceId": trace,
        "spanId": id,
        "parentSpanId": parent,
        "name": name,
        "kind": 2,
        "startTimeUnixNano": str(now - (20_000_000 if parent else 40_000_000)),
        "endTimeUnixNano": str(now),
        "attributes": [_attribute("test.text", name)],
        "status": {"code": 2, "message": error} if error else {},
    }
    return {"resourceSpans": [{"resource": _of(service), "scopeSpans": [{"spans": [made]}]}]}


def database_call(name: str, service: str, trace: str, parent: str, database: str) -> dict[str, Any]:
    """A client's span below a parent: `service` calls `database`, which sends no spans."""
    made = span(name, service, trace, os.urandom(8).hex(), parent)
    sent = made["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    sent |= {"kind": 3, "attributes": [_attribute("db.system.name", database)]}
    return made


def gauge(name: str, service: str, value: float) -> dict[str, Any]:
    point = {
        "timeUnixNano": str(time.time_ns()),
        "asDouble": value,
        "attributes": [_attribute("test.text", name)],
    }
    metric = {"name": name, "description": name, "unit": "1", "gauge": {"dataPoints": [point]}}
    return {"resourceMetrics": [{"resource": _of(service), "scopeMetrics": [{"metrics": [metric]}]}]}


def _of(service: str) -> dict[str, Any]:
    return {"attributes": [_attribute("service.name", service)]}


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
