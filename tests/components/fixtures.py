"""Fixtures over the components. In tests/conftest.py: `pytest_plugins = ["tests.components.fixtures"]`.

A component that cannot be had fails the test in CI (the environment has CI set) and skips it elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from . import apps as instrumented
from . import chromium as chromiums
from . import fullness, golang, iceberg_rest, kafka, postgres, s3
from . import promtool as promtools
from .cache import ComponentMissingError
from .proxy import ConditionalPuts, FaultyProxy

T = TypeVar("T")
FaultyProxyFactory = Callable[..., FaultyProxy]


@contextlib.contextmanager
def _or_skip() -> Iterator[None]:
    try:
        yield
    except ComponentMissingError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def _had(get: Callable[[], T]) -> T:
    with _or_skip():
        return get()


def _running(component: contextlib.AbstractContextManager[T]) -> Iterator[T]:
    with contextlib.ExitStack() as stack:
        yield _had(lambda: stack.enter_context(component))


@pytest.fixture(scope="session")
def moto_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """An S3 server from PyPI. One for all tests: make a bucket of your own."""
    yield from _running(s3.moto_server(tmp_path_factory.mktemp("moto")))


@pytest.fixture(scope="session")
def versitygw_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """An S3 server that checks signatures. Needs Go: use with @pytest.mark.go. Make a bucket of your own."""
    yield from _running(s3.versitygw_server(tmp_path_factory.mktemp("versitygw")))


@pytest.fixture(scope="session")
def lying_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """Accepts conditional PUTs and ignores the condition."""
    yield from _running(s3.lying_s3(tmp_path_factory.mktemp("lying_s3")))


@pytest.fixture(scope="session")
def racy_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """Refuses a second create, unless it comes at the same time."""
    yield from _running(s3.racy_s3(tmp_path_factory.mktemp("racy_s3")))


@pytest.fixture(scope="session", name="kafka")
def _kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.KafkaBroker]:
    """A Kafka broker. One for all tests: use topics of your own, and restart it if you stop it."""
    yield from _running(kafka.running_kafka(tmp_path_factory.mktemp("kafka")))


@pytest.fixture
def faulty_proxy(tmp_path: Path) -> Iterator[FaultyProxyFactory]:
    """Makes proxies that end with the test: `faulty_proxy(host, port, latency_seconds=0.05)`."""
    with contextlib.ExitStack() as stack:

        def make(
            host: str,
            port: int,
            *,
            latency_seconds: float = 0.0,
            conditional_puts: ConditionalPuts = "passed",
        ) -> FaultyProxy:
            proxy = FaultyProxy(
                host,
                port,
                folder=tmp_path,
                latency_seconds=latency_seconds,
                conditional_puts=conditional_puts,
            )
            return stack.enter_context(proxy)

        yield make


@pytest.fixture(scope="session")
def fault_shim() -> Path:
    """The compiled shim for `FaultControl`. Needs a C compiler: use with @pytest.mark.slow."""
    return _had(fullness.fault_shim)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], fullness.SmallFilesystem]]:
    """Mounts file systems of so many bytes. Skips where that is not allowed, in CI too: the shim remains."""
    with contextlib.ExitStack() as stack:

        def make(bytes_max: int) -> fullness.SmallFilesystem:
            try:
                mounting = fullness.small_filesystem(tmp_path / "small_disk", bytes_max=bytes_max)
                return stack.enter_context(mounting)
            except ComponentMissingError as missing:
                pytest.skip(str(missing))

        yield make


@pytest.fixture(scope="session")
def telemetrygen() -> Path:
    """The OpenTelemetry load generator. Needs Go: use with @pytest.mark.go."""
    return _had(golang.telemetrygen)


@pytest.fixture(scope="session")
def otel_collector() -> Path:
    """The Collector that `running_collector` runs. Needs Go: use with @pytest.mark.go."""
    return _had(golang.collector)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres.PostgresServer]:
    """One for all tests: make a database of your own."""
    yield from _running(postgres.postgres_server(tmp_path_factory.mktemp("postgres")))


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[iceberg_rest.RestCatalogServer]:
    """An Iceberg REST catalog with files in a folder. One for all tests: make a namespace of your own."""
    yield from _running(iceberg_rest.iceberg_rest_server(tmp_path_factory.mktemp("rest")))


@pytest.fixture(scope="session")
def rest_catalog_on_s3(
    tmp_path_factory: pytest.TempPathFactory, moto_s3: s3.S3Server
) -> Iterator[iceberg_rest.RestCatalogServer]:
    """The same with files in a bucket of `moto_s3`."""
    bucket = moto_s3.make_bucket("rest-catalog")
    folder = tmp_path_factory.mktemp("rest-s3")
    yield from _running(iceberg_rest.iceberg_rest_server(folder, s3=moto_s3, bucket=bucket))


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' checker of rules. Fetched once: use with @pytest.mark.slow."""
    return _had(promtools.promtool)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """A browser for `running_chromium`. Installed if need be: use with @pytest.mark.slow."""
    return _had(chromiums.chromium)


@pytest.fixture(scope="session")
def instrumented_apps() -> instrumented.Apps:
    """Applications for `running_apps`. Installed if need be: use with @pytest.mark.slow."""
    return _had(instrumented.apps)
