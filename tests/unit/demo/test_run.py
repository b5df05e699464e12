"""How a run goes: both protocols, seeds, incidents, receivers that are down, the end."""

from __future__ import annotations

import datetime
import ipaddress
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from frazil.demo import DemoOptions, DemoTotals, Incident, Protocol, VirtualClock, run_demo
from frazil.errors import ConfigError
from tests.support.demo_receivers import Received, grpc_receiver, http_receiver, plain
from tests.unit.demo.conftest import BEGIN

RECEIVERS: dict[Protocol, Callable[..., AbstractContextManager[Received]]] = {
    "grpc": grpc_receiver,
    "http": http_receiver,
}


@contextmanager
def silent_port(*, accepts: bool) -> Iterator[str]:
    """An address where nobody listens, or where connections are taken and never answered."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if accepts:
            taken.listen()
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_all_signals_arrive_with_the_key(protocol: Protocol, compression: Any) -> None:
    with RECEIVERS[protocol]() as received:
        options = DemoOptions(
            endpoint=received.endpoint,
            protocol=protocol,
            compression=compression,
            duration_seconds=4,
            api_key="k-1",
            seed=1,
        )
        totals = run_demo(options, clock=VirtualClock())
    assert totals.failed == 0
    assert (totals.spans, totals.logs, totals.points) == (
        len(received.spans),
        len(received.logs),
        len(received.points),
    )
    assert min(totals.traces, totals.spans, totals.logs, totals.points) > 0
    for _, _, headers in received.requests:
        assert headers["authorization"] == "Bearer k-1"
        if protocol == "http":
            assert headers.get("content-encoding") == ("gzip" if compression == "gzip" else None)


def content(received: Received) -> dict[str, list[Any]]:
    """What a seed decides. Not the times of points and the choice of exemplars, which the SDK makes."""
    points = []
    for kind, metric, point in received.points:
        copy = type(point)()
        copy.CopyFrom(point)
        copy.ClearField("time_unix_nano")
        copy.ClearField("start_time_unix_nano")
        if kind != "summary":
            copy.ClearField("exemplars")
        points.append((metric.name, copy.SerializeToString(deterministic=True)))
    return {
        "spans": sorted((str(sorted(r.items())), s.SerializeToString()) for r, _, s in received.spans),
        "logs": sorted((str(sorted(r.items())), s.SerializeToString()) for r, _, s in received.logs),
        "points": sorted(points),
    }


def test_the_same_seed_sends_the_same_content_and_another_does_not() -> None:
    runs = []
    for seed, protocol in ((3, "grpc"), (3, "http"), (4, "grpc")):
        with RECEIVERS[protocol]() as received:
            options = DemoOptions(received.endpoint, protocol, duration_seconds=8, seed=seed)
            run_demo(options, clock=VirtualClock(BEGIN))
        runs.append(content(received))
    assert runs[0] == runs[1]
    assert runs[0]["spans"] != runs[2]["spans"]


def traces_by_phase(incident: Incident | None) -> dict[bool, list[list[tuple[str, Any]]]]:
    """Traces of a run, inside (True) and outside the incident, which lasts from 15 s to 30 s of 45."""
    with grpc_receiver() as received:
        options = DemoOptions(
            received.endpoint,
            traces_per_second=6,
            duration_seconds=45,
            incident=incident,
            incident_after_seconds=15,
            incident_seconds=15,
            seed=11,
        )
        totals = run_demo(options, clock=VirtualClock(BEGIN))
    assert totals.failed == 0
    traces = defaultdict(list)
    for resource, _, span in received.spans:
        traces[span.trace_id].append((resource["service.name"], span))
    phases: dict[bool, list[list[tuple[str, Any]]]] = {True: [], False: []}
    for spans in traces.values():
        ended = (max(span.end_time_unix_nano for _, span in spans) + 1 - BEGIN) / 1e9
        phases[15 <= ended < 30].append(spans)
    return phases


def error_rate(traces: list[list[tuple[str, Any]]], service: str) -> float:
    served = [
        span
        for trace in traces
        for name, span in trace
        if name == service and span.kind == Span.SPAN_KIND_SERVER
    ]
    return sum(span.status.code == Status.STATUS_CODE_ERROR for span in served) / len(served)


def durations(traces: list[list[tuple[str, Any]]], wanted: Callable[[str, Any], bool]) -> list[float]:
    return sorted(
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        for trace in traces
        for service, span in trace
        if wanted(service, span)
    )


def test_incident_errors_breaks_one_service_and_its_callers() -> None:
    phases = traces_by_phase("errors")
    assert error_rate(phases[False], "catalog") < 0.03
    assert error_rate(phases[True], "catalog") > 0.4
    for caller in ("gateway", "frontend"):
        assert error_rate(phases[False], caller) < 0.05
        assert error_rate(phases[True], caller) > 0.2
    assert error_rate(phases[True], "user") < 0.05


def test_incident_slow_raises_latency_along_the_path_and_times_out() -> None:
    phases = traces_by_phase("slow")

    def database(_: str, span: Any) -> bool:
        return plain(span.attributes).get("db.system.name") == "postgresql"

    def pages(service: str, span: Any) -> bool:
        return service == "frontend" and span.kind == Span.SPAN_KIND_SERVER

    assert median(durations(phases[True], database)) > 20 * median(durations(phases[False], database))
    assert median(durations(phases[True], pages)) > 3 * median(durations(phases[False], pages))
    timed_out = [span for trace in phases[True] for _, span in trace if "timed out" in span.status.message]
    assert any(span.kind == Span.SPAN_KIND_SERVER for span in timed_out)
    assert not any("timed out" in span.status.message for trace in phases[False] for _, span in trace)
    assert max(durations(phases[True], database)) <= 3.000001


def test_incident_drop_leaves_a_fraction_of_the_traffic() -> None:
    phases = traces_by_phase("drop")
    inside, outside = len(phases[True]) / 15, len(phases[False]) / 30
    assert 0 < inside < 0.2 * outside
    assert outside > 5


def test_real_time_spans_end_about_now() -> None:
    begin = time.time_ns()
    with grpc_receiver() as received:
        run_demo(DemoOptions(received.endpoint, traces_per_second=60, duration_seconds=0.3, seed=2))
    ends = [span.end_time_unix_nano for _, _, span in received.spans]
    assert max(ends) <= time.time_ns()
    assert max(ends) > begin


def test_the_exporters_retry_until_the_receiver_accepts() -> None:
    def run(protocol: Protocol) -> tuple[DemoTotals, Received]:
        with RECEIVERS[protocol]() as received:
            received.refusals_left = 2
            options = DemoOptions(received.endpoint, protocol, duration_seconds=2, seed=1)
            return run_demo(options, clock=VirtualClock()), received

    with ThreadPoolExecutor() as pool:
        for totals, received in pool.map(run, RECEIVERS):
            assert received.refusals_left == 0
            assert totals.failed == 0
            assert totals.spans == len(received.spans) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_without_a_receiver_in_three_seconds(
    number: signal.Signals, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    signalled: list[float] = []

    def on_progress(totals: DemoTotals, _elapsed: float) -> None:
        if totals.traces or number == signal.SIGTERM:
            signalled.append(time.monotonic())
            signal.raise_signal(number)

    before = signal.getsignal(number)
    protocol: Protocol = "grpc" if number == signal.SIGINT else "http"
    with silent_port(accepts=False) as endpoint:
        totals = run_demo(DemoOptions(endpoint, protocol, seed=1), on_progress=on_progress)
    assert time.monotonic() - signalled[0] < 3
    assert len(signalled) == 1
    assert signal.getsignal(number) == before
    assert totals.sent == 0
    assert min(totals.logs_failed, totals.points_failed) > 0
    assert (totals.spans_failed > 0) == (totals.traces > 0) == (number == signal.SIGINT)
    assert totals.last_error
    assert "export" in totals.last_error
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_stop_ends_runs_whose_receivers_are_down_or_never_answer() -> None:
    stop = threading.Event()
    stop.set()

    def run(protocol: Protocol, accepts: bool) -> DemoTotals:
        with silent_port(accepts=accepts) as endpoint:
            return run_demo(DemoOptions(endpoint, protocol, seed=1), stop=stop)

    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run, protocol, accepts) for protocol in RECEIVERS for accepts in (True, False)]
        totals = [one.result() for one in runs]
    assert time.monotonic() - begin < 3
    assert all(one.sent == 0 and one.failed > 0 for one in totals)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """The key and certificate of 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = folder / "key.pem", folder / "cert.pem"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    certificate_file.write_bytes(certificate.public_bytes(pem))
    return key_file, certificate_file


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_tls_with_a_custom_ca_file(protocol: Protocol, tmp_path: Path) -> None:
    key_file, certificate_file = self_signed(tmp_path)
    with RECEIVERS[protocol](tls=(key_file, certificate_file)) as received:
        options = DemoOptions(
            received.endpoint, protocol, duration_seconds=1, seed=1, ca_file=str(certificate_file)
        )
        totals = run_demo(options, clock=VirtualClock())
    assert totals.failed == 0
    assert totals.spans == len(received.spans) > 0


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_missing_ca_file_is_rejected_immediately(protocol: Protocol, tmp_path: Path) -> None:
    options = DemoOptions("https://127.0.0.1:1", protocol, ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem"):
        run_demo(options)
