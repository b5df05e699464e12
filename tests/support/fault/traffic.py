"""Clients whose every record has a text of its own, and the account of what they were told.

A client sends one request after the other and never the same record twice, unless it is asked to try again.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import httpx
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from frazil.config import Config
from frazil.ledger import balance
from frazil.storage import Store
from frazil.tables import table_spec
from frazil.wal import open_store
from frazil.wal.reader import WalReader
from tests.components.process import wait_until
from tests.support.fault.records import logs_request
from tests.support.receiver import Receiver

Transport = Literal["http", "grpc"]
LOGS_EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PROTOBUF = {"content-type": "application/x-protobuf"}
# Without the client's own retries, an attempt is one request on the wire.
CHANNEL_OPTIONS = (("grpc.enable_retries", 0), ("grpc.max_reconnect_backoff_ms", 200))


@dataclass(frozen=True)
class Outcome:
    """What one attempt got: `answer` is "ok", "refused" (told so), or "nothing" (no answer at all)."""

    texts: tuple[str, ...]
    transport: Transport
    answer: Literal["ok", "refused", "nothing"]
    seconds: float
    code: str = ""
    message: str = ""
    retry_after_seconds: float | None = None


class Client:
    """One connection over one transport."""

    def __init__(self, receiver: Receiver, transport: Transport, *, timeout_seconds: float = 60) -> None:
        self._transport: Transport = transport
        self._timeout_seconds = timeout_seconds
        self._http: httpx.Client | None = None
        self._channel: Any = None
        if transport == "http":
            self._http = httpx.Client(base_url=receiver.http, timeout=timeout_seconds, verify=False)
        else:
            self._channel = grpc.insecure_channel(receiver.grpc, options=CHANNEL_OPTIONS)
            self._export = self._channel.unary_unary(LOGS_EXPORT)

    def send(self, texts: Iterable[str]) -> Outcome:
        sent = tuple(texts)
        begin = time.monotonic()
        told = (self._by_http if self._http is not None else self._by_grpc)(logs_request(sent))
        return Outcome(sent, self._transport, seconds=time.monotonic() - begin, **told)

    def _by_http(self, body: bytes) -> dict[str, Any]:
        assert self._http is not None
        try:
            response = self._http.post("/v1/logs", content=body, headers=PROTOBUF)
        except httpx.HTTPError as error:
            return {"answer": "nothing", "code": type(error).__name__}
        if response.status_code == 200:
            return {"answer": "ok"}
        delay = response.headers.get("retry-after")
        return {
            "answer": "refused",
            "code": str(response.status_code),
            "message": Status.FromString(response.content).message,
            "retry_after_seconds": None if delay is None else float(delay),
        }

    def _by_grpc(self, body: bytes) -> dict[str, Any]:
        try:
            self._export(body, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            details = dict(error.trailing_metadata() or ())
            if "grpc-status-details-bin" not in details:
                return {"answer": "nothing", "code": error.code().name, "message": error.details()}
            info = RetryInfo()
            Status.FromString(details["grpc-status-details-bin"]).details[0].Unpack(info)
            return {
                "answer": "refused",
                "code": error.code().name,
                "message": error.details(),
                "retry_after_seconds": info.retry_delay.seconds + info.retry_delay.nanos / 1e9,
            }
        return {"answer": "ok"}

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._channel is not None:
            self._channel.close()


@dataclass
class Account:
    """What was attempted and what was promised, to be held against what is there."""

    outcomes: list[Outcome] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, outcome: Outcome) -> Outcome:
        with self._lock:
            self.outcomes.append(outcome)
        return outcome

    @property
    def acked(self) -> set[str]:
        with self._lock:
            return {text for outcome in self.outcomes if outcome.answer == "ok" for text in outcome.texts}

    def answers(self, answer: str) -> list[Outcome]:
        with self._lock:
            return [outcome for outcome in self.outcomes if outcome.answer == answer]

    def check(self, found: Counter[str]) -> None:
        """Once for each ack, at most once more for each other attempt, and nothing from nowhere."""
        attempts = Counter(text for outcome in self.outcomes for text in outcome.texts)
        acks = Counter(text for outcome in self.answers("ok") for text in outcome.texts)
        lost = {text: (found[text], acks[text]) for text in acks if found[text] < acks[text]}
        assert not lost, f"acked and not there: {lost}"
        twice = {text: (count, attempts[text]) for text, count in found.items() if count > attempts[text]}
        assert not twice, f"there more often than it was sent: {twice}"


def fresh_texts(count: int) -> tuple[str, ...]:
    return tuple(f"record-{secrets.token_hex(8)}" for _ in range(count))


def burst(
    receiver: Receiver,
    account: Account,
    *,
    clients_per_transport: int = 2,
    requests: int = 5,
    records: int = 3,
    timeout_seconds: float = 60,
) -> None:
    """HTTP and gRPC clients at once, `requests` each; a client ends early when it gets no answer at all."""

    def work(transport: Transport) -> None:
        client = Client(receiver, transport, timeout_seconds=timeout_seconds)
        try:
            for _ in range(requests):
                if account.note(client.send(fresh_texts(records))).answer == "nothing":
                    break
        finally:
            client.close()

    transports: list[Transport] = ["http", "grpc"]
    with ThreadPoolExecutor(2 * clients_per_transport) as pool:
        list(pool.map(work, transports * clients_per_transport))


class Steady:
    """Clients that go on until stopped. With `retries`, each record is sent again until it is acked."""

    def __init__(
        self,
        receiver: Receiver,
        account: Account,
        *,
        clients_per_transport: int = 2,
        retries: bool = False,
        timeout_seconds: float = 60,
        pause_seconds: float = 0.02,
    ) -> None:
        self._account, self._retries, self._pause = account, retries, pause_seconds
        self._stop = threading.Event()
        self._clients = [
            Client(receiver, transport, timeout_seconds=timeout_seconds)
            for transport in ("http", "grpc")
            for _ in range(clients_per_transport)
        ]
        self._threads = [threading.Thread(target=self._work, args=(client,)) for client in self._clients]

    def __enter__(self) -> Steady:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No new records; with retries, waits until those under way are acked."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def _work(self, client: Client) -> None:
        while not self._stop.is_set():
            texts = fresh_texts(3)
            while True:
                outcome = self._account.note(client.send(texts))
                if outcome.answer == "ok" or not self._retries:
                    break
                time.sleep(min(outcome.retry_after_seconds or 0.2, 1))  # what it was told to wait
            self._stop.wait(self._pause)


def found_logs(config: Config, store: Store | None = None) -> Counter[str]:
    """The texts of all log records in the WAL, as landing would read them."""
    reader, spec = WalReader(store or open_store(config)), table_spec("logs")
    tables = (reader.rows(segment.name, spec)[1] for segment in reader.pending("logs"))
    return Counter(itertools.chain.from_iterable(table.column("body").to_pylist() for table in tables))


def streams(config: Config, store: Store | None = None) -> set[str]:
    return {segment.name.stream for segment in WalReader(store or open_store(config)).segments("logs")}


def check_wal(receiver: Receiver, account: Account) -> None:
    """Nothing acked is lost, nothing is there more often than sent, and the ledger closes."""
    account.check(found_logs(receiver.config))
    ledger = balance(receiver.config)
    assert ledger.problems == []
    assert sum(line.set_aside for line in ledger.lines) == 0


def until(condition: Callable[[], bool], *, seconds_max: float = 30, what: str = "") -> None:
    assert wait_until(condition, seconds_max=seconds_max), f"not within {seconds_max} s: {what}"
