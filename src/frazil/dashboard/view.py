"""Parts that all pages share: arguments, error messages, refreshing fragments, and the page without data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError, ApiSession
from frazil.dashboard.format import message_markdown
from frazil.dashboard.parts.freshness import show_freshness
from frazil.dashboard.time_range import DEFAULT, SelectedRange
from frazil.times import micros_of

LABELS = {
    "q": "Search",
    "regex": "Search",
    "service": "Services",
    "attr": "Attributes",
    "severity": "Severity",
    "name": "Operation",
    "duration_min": "Min duration",
    "duration_max": "Max duration",
    "from": "Time range",
    "to": "Time range",
}
"""The fields of the pages, by parameter of the API. Errors name the field."""
_TITLES = {
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
_PASSING = {
    "unreachable": "the API does not answer",
    "overloaded": "too many concurrent queries",
    "store_unavailable": "storage is unavailable",
    "catalog_unavailable": "the catalog is unavailable",
}
"""Errors that end without the user: a page keeps the data that it shows, and tries again."""


@dataclass(frozen=True)
class View:
    """The arguments of every page."""

    api: ApiSession
    time_range: SelectedRange
    refresh_seconds: float | None  # None: the page does not refresh automatically
    retry_seconds: float | None
    """None: the page does not try again automatically after an error."""
    otlp_http: str
    otlp_grpc: str
    pages: Mapping[str, Any]
    """Streamlit's pages by path, for links that do not load the whole dashboard again."""
    is_stale: bool = False
    """The API is away: `api` has only the results that were read at the end of `time_range`."""

    @property
    def now_micros(self) -> int:
        """The time at which results end: for a relative range, the one at which the page is drawn. A page
        that shows older data asks for the same again.
        """
        now = self.time_range.bounds()[1] if self.time_range.is_relative else dt.datetime.now(dt.UTC)
        return micros_of(now)

    def at(self, now: dt.datetime) -> View:
        return replace(self, time_range=self.time_range.at(now))

    def stale(self, now: dt.datetime, error: ApiError) -> View:
        return replace(self.at(now), api=self.api.last_results(error), is_stale=True)


def url_multiselect(container: DeltaGenerator, label: str, options: Iterable[str], **given: Any) -> list[str]:
    """Shows a multiselect whose value is in the URL and that accepts values other than `options`."""
    return container.multiselect(label, options, bind="query-params", accept_new_options=True, **given)


def address(page: str, **parameters: str | list[str]) -> str:
    """Returns the address of another page with the selected time range."""
    chosen = st.session_state.get("range")
    given = {"range": chosen} if chosen and chosen != DEFAULT else {}
    return f"/{page}?{urlencode(parameters | given, doseq=True)}"


def error_text(error: ApiError) -> str:
    """Returns an error in Markdown. Fields are named as the page labels them."""
    message = error.message
    if error.parameter in LABELS and message.startswith(error.parameter):
        message = LABELS[error.parameter] + message.removeprefix(error.parameter)
    if error.code == "unreachable":  # the message says so
        return message_markdown(message)
    return f"**{_TITLES.get(error.code, 'Request failed')}.** {message_markdown(message)}"


def show_error(
    error: ApiError,
    retry_seconds: float | None = None,
    *,
    key: str = "error",
    on_retry: Callable[[], None] | None = None,
) -> None:
    """Shows an error. If it may pass, runs the page again on request and after `retry_seconds`."""
    st.error(error_text(error), icon=":material/error:")
    if error.code == "unauthenticated":
        theme.link("Log in", "/login")
    elif error.code == "limit_reached":
        st.caption("Choose a shorter time range, or filter by service.")
    elif error.code in _PASSING:
        st.button("Try again", icon=":material/refresh:", key=f"{key}_retry", on_click=on_retry)
        if retry_seconds is not None:
            _rerun_after(retry_seconds)


def _rerun_after(seconds: float) -> None:
    is_first = True

    def fragment() -> None:
        nonlocal is_first
        if not is_first:
            st.rerun()
        is_first = False

    st.fragment(fragment, run_every=seconds)()


def show_fragment(
    draw: Callable[[View], None],
    view: View,
    *,
    refresh_seconds: float | None = None,
    is_main: bool = True,
) -> None:
    """Draws now, and again whenever the page refreshes, or every `refresh_seconds`. Shows errors in place:
    Streamlit redraws a fragment without the code around it.

    While the API is away, the data of the last successful call remains, with its age. For that, `draw` reads
    all data before it draws anything, because it is called twice. Of several fragments of a page, the one
    that `is_main` says that the API is away.
    """
    name = f"{draw.__module__}.{draw.__qualname__}"
    every = refresh_seconds or view.refresh_seconds

    def fragment() -> None:
        now, reason = dt.datetime.now(dt.UTC), ""
        try:
            draw(view.at(now))
            st.session_state[name] = now
        except ApiError as error:
            if not _redraw(draw, view, st.session_state.get(name), error):
                if is_main or error.code not in _PASSING:
                    show_error(error, None if every else view.retry_seconds, key=name)
                return
            now, reason = st.session_state[name], _PASSING[error.code]
        if is_main:
            show_freshness(now, reason, key=f"{name}.freshness")

    # Streamlit identifies the fragments of a page by their names.
    fragment.__qualname__ = name
    st.fragment(fragment, run_every=every)()


def _redraw(
    draw: Callable[[View], None], view: View, updated_at: dt.datetime | None, error: ApiError
) -> bool:
    """Draws what was read at `updated_at`. Returns False if that is not known, or `error` will not pass."""
    if updated_at is None or error.code not in _PASSING:
        return False
    try:
        draw(view.stale(updated_at, error))
    except ApiError:
        return False
    return True


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
