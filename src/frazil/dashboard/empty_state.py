"""What a page shows when there is nothing yet: how to send something."""

from __future__ import annotations

import streamlit as st

from frazil.dashboard.view import View


def show_how_to_send(view: View, what: str = "telemetry") -> None:
    """Snippets with this frazil's own addresses, to copy."""
    st.subheader(f"No {what} yet")
    st.write("Send data with any OpenTelemetry SDK or Collector. It appears here within a second.")
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
        "If API keys are configured, add the header `Authorization: Bearer fz_…` with a key that has the role "
        "`write`."
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
