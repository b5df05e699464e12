"""Time from a log's ack until a query returns it, while the pipeline lands and other clients send."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx
from tests.support.receiver import running_receiver
from tests.support.spark.land_process import SMALL_SPARK, running_pipeline

from bench.payloads import logs_request
from bench.serving import running_api
from bench.table import Bench, Row

PROBES, QUICK_PROBES = 200, 40
PROMISED_MS = (250, 700)
_PAUSE_SECONDS = 0.15
_BACKGROUND_RECORDS = 200


def freshness(bench: Bench) -> None:
    """Landing every five seconds, so that several fall into the measurement."""
    probes = QUICK_PROBES if bench.quick else PROBES
    land = {"age_max_seconds": 5, "poll_interval_seconds": 0.5}
    with tempfile.TemporaryDirectory(prefix="frazil-bench-fresh-") as place:
        settings = {"land": land, "spark": SMALL_SPARK}
        with running_receiver(Path(place), settings) as receiver:
            data_dir = Path(place) / "data"
            with running_pipeline(receiver.config_path) as pipeline, running_api(data_dir) as url:
                stop = threading.Event()
                sender = threading.Thread(target=_send, args=(receiver.http_port, stop))
                sender.start()
                try:
                    pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") > 0)
                    before = pipeline.metric("frazil_land_commits_total")
                    found, looks = _probe(receiver.http_port, url, probes)
                    commits = pipeline.metric("frazil_land_commits_total") - before
                finally:
                    stop.set()
                    sender.join()
    found.sort()
    p50, p99 = statistics.median(found), found[min(len(found) - 1, int(len(found) * 0.99))]
    bench.add(
        Row(
            "freshness: from ack to visible",
            f"p50 {p50:.0f} / p99 {p99:.0f} ms",
            "",
            f"{probes} probes, {looks} queries, {commits:.0f} landings during the run, "
            f"{_BACKGROUND_RECORDS * 10:,} records/s in the background",
            f"p50 < {PROMISED_MS[0]}, p99 < {PROMISED_MS[1]} ms",
            p50 < PROMISED_MS[0] and p99 < PROMISED_MS[1],
        )
    )


def _send(port: int, stop: threading.Event) -> None:
    seed = 50_000
    with httpx.Client() as client:
        while not stop.wait(0.1):
            client.post(
                f"http://127.0.0.1:{port}/v1/logs",
                content=logs_request(seed, _BACKGROUND_RECORDS),
                headers={"content-type": "application/x-protobuf"},
            )
            seed += 1


def _probe(port: int, url: str, probes: int) -> tuple[list[float], int]:
    """Milliseconds until each record was returned, and the number of queries."""
    found, looks = [], 0
    with httpx.Client(timeout=30) as client:
        for number in range(probes):
            text = f"probe {number} {time.time_ns()}"
            record = {"timeUnixNano": str(time.time_ns()), "body": {"stringValue": text}}
            body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
            client.post(f"http://127.0.0.1:{port}/v1/logs", json=body).raise_for_status()
            acked = time.perf_counter()
            sql = "SELECT count(*) FROM logs WHERE time > now() - INTERVAL 5 MINUTE AND body = ?"
            seen = False
            while not seen:
                answer = client.post(f"{url}/api/v1/sql", content=json.dumps({"sql": sql, "params": [text]}))
                answer.raise_for_status()
                looks += 1
                seen = answer.json()["rows"][0][0] == 1
            found.append((time.perf_counter() - acked) * 1000)
            time.sleep(_PAUSE_SECONDS)
    return found, looks
