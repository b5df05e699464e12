"""Parts that all pages share: arguments, error messages, refreshing fragments, and the page without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError, ApiSession
from frazil.dashboard.format import escape_markdown
from frazil.dashboard.time_range import SelectedRange

_TITLES = {
    "unreachable": "The API is unreachable",
    "unauthenticated": "Your session has expired, or the API key is no longer valid",
    "forbidden": "This API key does not have permission",
    "limit_reached": "Query limit exceeded",
    "overloaded": "Too many concurrent queries",
    "store_unavailable": "Storage is unavailable",
    "catalog_unavailable": "The catalog is unavailable",
    "query_invalid": "Invalid query",
    "request_invalid": "Invalid request",
    "query_refused": "Query not allowed",
    "not_found": "Not found",
}
_RETRYABLE = ("unreachable", "overloaded", "store_unavailable", "catalog_unavailable")


@dataclass(frozen=True)
class View:
    """The arguments of every page."""

    api: ApiSession
    time_range: SelectedRange
    refresh_seconds: float | None  # None: the page does not refresh automatically
    otlp_http: str
    otlp_grpc: str


def url_multiselect(container: DeltaGenerator, label: str, options: Iterable[str], **given: Any) -> list[str]:
    """Shows a multiselect whose value is in the URL and that accepts values other than `options`."""
    return container.multiselect(label, options, bind="query-params", accept_new_options=True, **given)


def show_error(error: ApiError) -> None:
    title = _TITLES.get(error.code, "Request failed")
    message = escape_markdown(error.message[:1].upper() + error.message[1:])
    st.error(f"**{title}.** {message}", icon=":material/error:")
    if error.code == "unauthenticated":
        theme.link("Log in", "/login")
    elif error.code == "limit_reached":
        st.caption("Choose a shorter time range, or filter by service.")
    elif error.code in _RETRYABLE:
        st.button("Try again", icon=":material/refresh:")


def show_fragment(draw: Callable[[View], None], view: View) -> None:
    """Draws now, and again whenever the page refreshes. Shows errors in place: Streamlit redraws a fragment
    without the code around it.
    """

    def fragment() -> None:
        try:
            draw(view)
        except ApiError as error:
            show_error(error)

    # Streamlit identifies the fragments of a page by their names.
    fragment.__qualname__ = f"{draw.__module__}.{draw.__qualname__}"
    st.fragment(fragment, run_every=view.refresh_seconds)()


def show_how_to_send(view: View, signal: str = "telemetry") -> None:
    """Shows snippets to copy, with the addresses of this receiver."""
    st.subheader(f"No {signal} yet")
    st.write("Send data with any OpenTelemetry SDK or Collector. Data appears here within one second.")
    curl, python, any_sdk, collector, demo = st.tabs(["curl", "Python", "Any SDK", "Collector", "Demo"])
    with curl:
        st.code(_CURL.format(http=view.otlp_http), language="bash")
    with python:
        st.code(_PYTHON.format(http=view.otlp_http), language="bash")
    with any_sdk:
        st.code(_ENVIRONMENT.format(http=view.otlp_http), language="bash")
        if view.otlp_grpc:
            st.caption(f"The gRPC endpoint is {view.otlp_grpc}.")
    with collector:
        st.code(_COLLECTOR.format(http=view.otlp_http), language="yaml")
    with demo:
        st.code("frazil demo --rate 5", language="bash")
        st.caption("Sends the telemetry of a simulated shop until you stop it.")
    st.caption(
        "If API keys are configured, add the header `Authorization: Bearer fz_…` with a key that has the "
        "role `write`."
    )


_CURL = """curl -s {http}/v1/logs -H 'content-type: application/json' -d '{{
  "resourceLogs": [{{
    "resource": {{"attributes": [{{"key": "service.name", "value": {{"stringValue": "my-service"}}}}]}},
    "scopeLogs": [{{"logRecords": [{{"severityNumber": 9, "severityText": "INFO",
      "body": {{"stringValue": "hello, frazil"}}}}]}}]}}]}}'"""
_PYTHON = """pip install opentelemetry-distro opentelemetry-exporter-otlp
OTEL_SERVICE_NAME=my-service OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf \\
OTEL_EXPORTER_OTLP_ENDPOINT={http} OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED=true \\
opentelemetry-instrument --logs_exporter otlp python my_program.py"""
_ENVIRONMENT = """export OTEL_SERVICE_NAME=my-service
export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf
export OTEL_EXPORTER_OTLP_ENDPOINT={http}"""
_COLLECTOR = """exporters:
  otlphttp/frazil:
    endpoint: {http}
    compression: zstd
service:
  pipelines:
    logs: {{exporters: [otlphttp/frazil]}}
    traces: {{exporters: [otlphttp/frazil]}}
    metrics: {{exporters: [otlphttp/frazil]}}"""
