"""Which jars a configuration needs, and that they are fetched once."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.config import Config
from frazil.errors import Permanent, Transient
from frazil.pipeline import jars as jars_module
from frazil.pipeline.jars import (
    AWS,
    EVERY,
    ICEBERG,
    KAFKA,
    POSTGRES,
    SQLITE,
    Package,
    fetch,
    jars,
    missing,
    packages,
    proxy_options,
)

REST = {"catalog": {"type": "rest", "rest": {"uri": "https://catalog.example.com"}}}
POSTGRESQL = {"catalog": {"type": "postgres", "postgres": {"uri": "postgresql://db.example.com/frazil"}}}
KAFKA_WAL = {"type": "kafka", "kafka": {"brokers": ["127.0.0.1:9092"]}}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "frazil" / "jars"


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[list[Package]]:
    """The packages requested from a stand-in for Maven that returns empty files."""
    requested: list[list[Package]] = []

    def fetch_nothing(wanted: list[Package], folder: Path, settings: object) -> None:
        requested.append(wanted)
        for package in wanted:
            (folder / package.file_name).touch()

    monkeypatch.setattr(jars_module, "fetch", fetch_nothing)
    return requested


@pytest.mark.parametrize(
    ("sections", "needed"),
    [
        ({}, (ICEBERG, SQLITE)),
        ({"lake": {"warehouse": "s3://telemetry/lake"}}, (ICEBERG, SQLITE, AWS)),
        ({"lake": POSTGRESQL}, (ICEBERG, POSTGRES)),
        ({"lake": REST}, (ICEBERG, AWS)),
        ({"wal": KAFKA_WAL}, (ICEBERG, SQLITE, *KAFKA)),
    ],
)
def test_a_configuration_needs_no_more_than_it_uses(
    sections: dict[str, object], needed: tuple[Package, ...]
) -> None:
    assert packages(Config.model_validate(sections)) == needed


def test_existing_jars_are_not_fetched_again(cache: Path, fetches: list[list[Package]]) -> None:
    first = jars(Config())
    assert jars(Config()) == first == [cache / ICEBERG.file_name, cache / SQLITE.file_name]
    jars(Config.model_validate({"lake": REST}))
    assert fetches == [[ICEBERG, SQLITE], [AWS]]


def test_of_several_that_start_at_once_one_fetches(cache: Path, fetches: list[list[Package]]) -> None:
    all_started = threading.Barrier(4)

    def start() -> None:
        all_started.wait()
        jars(Config())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetches == [[ICEBERG, SQLITE]]


def resolving_to(content: bytes) -> Callable[..., contextlib.AbstractContextManager[Callable[..., Path]]]:
    @contextlib.contextmanager
    def resolver(scratch: Path, settings: object) -> Iterator[Callable[[Package], Path]]:
        def resolve(package: Package) -> Path:
            jar = scratch / "any.jar"
            jar.write_bytes(content)
            return jar

        yield resolve

    return resolver


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars_module, "_resolver", resolving_to(b"something else"))
    with pytest.raises(Permanent, match="not the jar that this release was tested with"):
        fetch([SQLITE], tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_a_fetched_jar_is_all_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars_module, "_resolver", resolving_to(b"a jar"))
    package = Package("org.example:thing:1.0", hashlib.sha256(b"a jar").hexdigest())
    fetch([package], tmp_path, {})
    assert [file.name for file in tmp_path.iterdir()] == ["thing-1.0.jar"]


def test_names_of_jars_do_not_collide() -> None:
    assert len({package.file_name for package in EVERY}) == len(EVERY)


def test_a_proxy_of_the_environment_is_passed_to_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "localhost, .example.org")
    assert proxy_options() == [
        "-Dhttps.proxyHost=proxy.example.com",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example.org",
    ]


@pytest.mark.slow
def test_a_jar_comes_from_maven_and_the_second_time_from_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars_module, "packages", lambda config: (POSTGRES,))
    (jar,) = jars(Config())
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == POSTGRES.sha256
    assert missing([POSTGRES]) == []
    monkeypatch.setattr(jars_module, "_resolver", None)
    assert jars(Config()) == [jar]


@pytest.mark.slow
def test_a_mirror_that_cannot_be_reached_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    monkeypatch.setattr(jars_module, "packages", lambda config: (POSTGRES,))
    with pytest.raises(Transient, match=r"127\.0\.0\.1:9.*Connection refused"):
        jars(Config())
    assert [file.name for file in cache.iterdir()] == [".lock"]
