"""What a question gets when a part is down, gone, corrupt or full: the truth, and all again afterwards."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from frazil.config import Config
from frazil.errors import CatalogUnavailable, LimitReached, QueryRefused, StoreUnavailable
from frazil.pipeline.land import upkeep
from frazil.query import lake
from frazil.query.sandbox_settings import s3_options
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from tests.components.fixtures import FaultyProxyFactory
from tests.components.fullness import SmallFilesystem
from tests.components.process import dies_with_parent, wait_until
from tests.components.s3 import S3Server
from tests.support.integration.moving_lake import Landing, Log, configured
from tests.support.query.small_lake import Service, Told

pytestmark = pytest.mark.slow

COUNT = "SELECT count(*) FROM logs"
BODIES = "SELECT body FROM logs ORDER BY body"
Start = Callable[[Config], Service]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)  # no power is cut here, and it waits for all disks


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that was down is asked again at once."""
    monkeypatch.setattr(lake, "_RETRY_SECONDS", 0.0)


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(config: Config) -> Service:
            service = Service(config)
            service.start()
            stack.callback(service.close)
            return service

        yield start


@contextlib.contextmanager
def landing_of(config: Config) -> Iterator[Landing]:
    with contextlib.closing(Landing(config)) as landing:
        yield landing


def landed(config: Config, *batches: Sequence[str]) -> Log:
    """A table with a file for each batch."""
    written = Log(config)
    with landing_of(config) as landing:
        for batch in batches:
            written.write(batch)
            landing.land("logs")
    return written


def bodies(told: Told) -> list[str]:
    return [row[0] for row in told.rows]


def wait_for(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, seconds_max=60)


# The catalog


def test_while_the_catalog_is_gone_answers_have_all_that_was_acked_and_say_that_they_may_be_behind(
    tmp_path: Path, start: Start
) -> None:
    config = configured(tmp_path, query={"metadata_age_max_seconds": 0})
    written = landed(config, ["a"])
    service = start(config)
    assert service.execute(BODIES).stats.stale is None
    away = config.catalog_file.rename(tmp_path / "away")
    written.write(["b"])
    told = service.execute(BODIES)
    assert bodies(told) == ["a", "b"]
    assert "catalog.db is missing" in str(told.stats.stale)
    assert list(told.stats.missing) == []
    written.write(["c"])
    assert bodies(service.execute(BODIES)) == ["a", "b", "c"]
    away.rename(config.catalog_file)
    told = service.execute(BODIES)
    assert (bodies(told), told.stats.stale) == (["a", "b", "c"], None)


def test_while_somebody_locks_the_catalog_answers_come_and_say_so(tmp_path: Path, start: Start) -> None:
    config = configured(tmp_path, query={"metadata_age_max_seconds": 0})
    written = landed(config, ["a"])
    service = start(config)
    assert service.execute(COUNT).stats.stale is None
    with contextlib.closing(sqlite3.connect(config.catalog_file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        written.write(["b"])
        told = service.execute(BODIES)
        assert bodies(told) == ["a", "b"]
        assert "slow to respond" in str(told.stats.stale)
        other.execute("ROLLBACK")
    wait_for(lambda: service.execute(BODIES).stats.stale is None)


def test_a_catalog_that_is_gone_from_the_start_is_an_error_and_no_empty_lake(
    tmp_path: Path, start: Start
) -> None:
    config = configured(tmp_path)
    landed(config, ["a"])
    away = config.catalog_file.rename(tmp_path / "away")
    service = start(config)
    with pytest.raises(CatalogUnavailable, match="restore the file"):
        service.execute(COUNT)
    assert not config.catalog_file.exists()
    away.rename(config.catalog_file)
    assert service.execute(COUNT).rows == [[1]]


def catalog_of_its_own(config: Config) -> tuple[Config, Path]:
    """For the service: by another name, so that it can be gone for it alone."""
    link = config.catalog_file.with_name("link.db")
    link.symlink_to(config.catalog_file)
    given = config.model_dump()
    given["lake"]["catalog"]["sqlite"]["path"] = link
    return Config.model_validate(given), link


@pytest.mark.parametrize("end", ["silent", "closed", "going on", "new"])
def test_what_landed_and_was_cleaned_up_while_the_catalog_was_gone_is_said_to_be_missing(
    tmp_path: Path, start: Start, end: str
) -> None:
    """However the stream ended: nothing in the log itself tells that there was more."""
    config = configured(
        tmp_path,
        land={"wal_grace_seconds": 0},
        query={"metadata_age_max_seconds": 0, "result_cache_bytes_max": 0},
    )
    first = landed(config, ["a"])
    own, link = catalog_of_its_own(config)
    service = start(own)
    assert bodies(service.execute(BODIES)) == ["a"]
    link.unlink()
    written = Log(config) if end == "new" else first
    written.write(["b"])
    with landing_of(config) as landing:
        landing.land("logs")
        if end == "closed":
            written.end()
            landing.land("logs")
        landing.keep_up("logs")
    if end in ("going on", "new"):
        written.write(["c"])
    told = service.execute(BODIES)
    assert "b" not in bodies(told)
    assert "is missing" in str(told.stats.stale)
    assert any("landed in the last" in text for text in told.stats.missing)
    link.symlink_to(config.catalog_file)
    told = service.execute(BODIES)
    assert bodies(told) == ["a", "b", *(["c"] if end in ("going on", "new") else [])]
    assert (told.stats.stale, list(told.stats.missing)) == (None, [])


def test_a_table_that_was_made_while_the_catalog_was_gone_is_said_to_be_missing(
    tmp_path: Path, start: Start
) -> None:
    config = configured(tmp_path, land={"wal_grace_seconds": 0}, query={"metadata_age_max_seconds": 0})
    with landing_of(config):
        own, link = catalog_of_its_own(config)
    service = start(own)
    assert service.execute(COUNT).rows == [[0]]
    link.unlink()
    landed(config, ["a"])
    with landing_of(config) as landing:
        landing.keep_up("logs")
    told = service.execute(COUNT)
    assert told.rows == [[0]]
    assert told.stats.stale is not None
    assert any("landed in the last" in text for text in told.stats.missing)


@pytest.mark.parametrize("times", [1, 2, 100])
def test_what_lands_and_is_cleaned_up_between_two_looks_is_found_or_there_is_no_answer(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """After the catalog was asked and before the log was: in neither."""
    config = configured(tmp_path, land={"wal_grace_seconds": 0})
    written = landed(config, ["0"])
    service = start(config)
    tail = service.queries._tail
    assert tail is not None
    cut, before = tail.cut, itertools.count(1)

    def late(*where: Any, **bounds: Any) -> Any:
        if (number := next(before)) <= times:
            written.write([str(number)])
            with landing_of(config) as landing:
                landing.land("logs")
                landing.keep_up("logs")
        return cut(*where, **bounds)

    monkeypatch.setattr(tail, "cut", late)
    if times < 100:
        told = service.execute(BODIES)
        assert bodies(told) == [str(number) for number in range(times + 1)]
        assert list(told.stats.missing) == []
    else:
        with pytest.raises(StoreUnavailable, match=r"land\.wal_grace_seconds"):
            service.execute(BODIES)


# The store


def s3_lake(tmp_path: Path, server: S3Server, bucket: str, **sections: Any) -> Config:
    s3 = {
        "endpoint": server.endpoint,
        "allow_http": True,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }
    return configured(tmp_path, lake={"warehouse": f"s3://{bucket}/lake", "s3": s3}, **sections)


def test_a_lake_on_s3_that_is_cut_off_is_an_error_or_the_part_that_is_left(
    tmp_path: Path, start: Start, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    bucket = moto_s3.make_bucket(f"lake-{secrets.token_hex(6)}")
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    config = s3_lake(tmp_path, moto_s3.through(proxy), bucket)
    written = landed(config, ["a"], ["b"])
    written.write(["c"])
    service = start(config)
    assert bodies(service.execute(BODIES)) == ["a", "b", "c"]
    with proxy.refusing():
        written.write(["d"])
        with pytest.raises(StoreUnavailable, match="data files cannot be read now"):
            service.execute(BODIES)
        told = service.execute(BODIES, partial=True)
        assert bodies(told) == ["c", "d"]
        assert "2 data files cannot be read now" in told.stats.missing[0]
        trace = "SELECT body FROM logs WHERE trace_id = '0af7651916cd43dd8448eb211c80319c'"
        assert service.execute(trace, partial=True).rows == [], "filters are not needed for an answer"
    told = service.execute(BODIES)
    assert (bodies(told), list(told.stats.missing)) == (["a", "b", "c", "d"], [])
    written.write(["e"])
    proxy.latency_seconds = 600  # and where it is silent, the limit holds
    with pytest.raises(LimitReached, match=r"query\.seconds_max"):
        service.execute(BODIES, seconds_max=1)
    proxy.latency_seconds = 0
    assert bodies(service.execute(BODIES)) == ["a", "b", "c", "d", "e"]


def test_of_a_bucket_only_what_was_planned_can_be_read(
    tmp_path: Path, start: Start, moto_s3: S3Server
) -> None:
    bucket = moto_s3.make_bucket(f"lake-{secrets.token_hex(6)}")
    config = s3_lake(tmp_path, moto_s3, bucket)
    landed(config, ["a"], ["b"])
    with contextlib.closing(moto_s3.client()) as client:
        found = client.list_objects_v2(Bucket=bucket, Prefix="lake/otel/logs/data/")["Contents"]
        client.put_object(Bucket=bucket, Key="other.csv", Body=b"secret")
    service = start(config)
    assert bodies(service.execute(BODIES)) == ["a", "b"]
    planned, other = (f"s3://{bucket}/{each['Key']}" for each in found)
    with pytest.raises(QueryRefused):
        service.execute(f"SELECT * FROM read_parquet('{planned}')")
    # Beneath what the SQL is checked for, DuckDB itself has nothing else in reach.
    temp = tmp_path / "spill"
    temp.mkdir()
    sandbox = Sandbox(Settings(1, 256 << 20, 0, str(temp), "otel", s3_options(config)))
    with contextlib.closing(sandbox):
        sandbox.fill(
            [TableSource("spans", [("name", "VARCHAR", 1_000_000)], files=[planned], older=[], tail=[])]
        )
        read = sandbox.connection.execute(f"SELECT count(*) FROM read_parquet('{planned}')")
        assert read.fetchall() == [(1,)]
        for hidden in (other, f"s3://{bucket}/other.csv", f"s3://{bucket}/lake/otel/logs/data/*"):
            with pytest.raises(duckdb.PermissionException):
                sandbox.connection.execute(f"SELECT * FROM read_text('{hidden}')")


def test_a_log_on_s3_that_is_cut_off_is_an_error(
    tmp_path: Path, start: Start, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    bucket = moto_s3.make_bucket(f"wal-{secrets.token_hex(6)}")
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    s3 = {
        "bucket": bucket,
        "endpoint": proxy.url,
        "allow_http": True,
        "access_key_id": moto_s3.access_key,
        "secret_access_key": moto_s3.secret_key,
    }
    config = configured(tmp_path, wal={"type": "s3", "s3": s3})
    written = landed(config, ["a"])
    written.write(["b"])
    service = start(config)
    assert bodies(service.execute(BODIES)) == ["a", "b"]
    with proxy.refusing():
        for partial in (False, True):
            with pytest.raises(StoreUnavailable):
                service.execute(BODIES, partial=partial)
    assert bodies(service.execute(BODIES)) == ["a", "b"]


def test_a_data_file_that_is_gone_is_an_error_or_named(tmp_path: Path, start: Start) -> None:
    config = configured(tmp_path)
    landed(config, ["a"], ["b"]).write(["c"])
    service = start(config)
    files = sorted(Path(config.warehouse).rglob("data/**/*.parquet"), key=lambda path: path.stat().st_mtime)
    files[0].unlink()
    with pytest.raises(StoreUnavailable) as raised:
        service.execute(BODIES)
    assert str(tmp_path) not in str(raised.value)
    told = service.execute(BODIES, partial=True)
    assert bodies(told) == ["b", "c"]
    assert "1 data files cannot be read now" in told.stats.missing[0]


# The log


def test_a_corrupt_segment_is_named_and_the_others_are_there(tmp_path: Path, start: Start) -> None:
    config = configured(tmp_path)
    written = Log(config)
    for text in ("a", "b", "c"):
        name = written.write([text])
        if text == "b":
            path = config.wal_dir / name.path
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(data)
            broken = name
    service = start(config)
    told = service.execute(BODIES)
    assert bodies(told) == ["a", "c"]
    assert [broken.path in text for text in told.stats.missing] == [True]
    with landing_of(config) as landing:
        landing.land("logs")
    wait_for(lambda: not service.execute(COUNT).stats.missing)
    assert bodies(service.execute(BODIES)) == ["a", "c"]


def test_a_log_that_nobody_lands_is_answered_from_its_newest_rows_and_says_what_is_left_out(
    tmp_path: Path, start: Start
) -> None:
    config = configured(tmp_path, query={"tail_bytes_max": "16MiB", "metadata_age_max_seconds": 0})
    written = Log(config)
    numbers = range(600)
    for number in numbers:
        written.write([f"{number:06d}/{each}/{secrets.token_hex(400)}" for each in range(60)])
    service = start(config)
    sql = "SELECT substr(body, 1, 6)::INT AS number, count(*) FROM logs GROUP BY ALL ORDER BY number"
    told = service.execute(sql)
    found = [number for number, _ in told.rows]
    assert found == list(numbers)[-len(found) :], "the newest, without a gap"
    assert 0 < len(found) < len(numbers)
    assert all(count == 60 for _, count in told.rows)
    assert ["query.tail_bytes_max" in text for text in told.stats.missing] == [True]
    kept = sum(path.stat().st_size for path in service.folder.rglob("*.parquet"))
    assert kept <= 2 * config.query.tail_bytes_max
    with landing_of(config) as landing:
        landing.land("logs")
    told = service.execute(sql)
    assert ([tuple(row) for row in told.rows], list(told.stats.missing)) == (
        [(number, 60) for number in numbers],
        [],
    )


# The service's own place


def test_a_full_temporary_disk_is_an_error_that_says_so_and_passes(
    tmp_path: Path, start: Start, small_disk: Callable[[int], SmallFilesystem]
) -> None:
    disk = small_disk(8 << 20)
    config = configured(tmp_path, query={"temp_dir": disk.path / "temp"})
    Log(config).write(["a"])
    service = start(config)
    disk.fill()
    with pytest.raises(StoreUnavailable, match=r"No space left on device.*query\.temp_dir"):
        service.execute(BODIES)
    disk.free()
    assert bodies(service.execute(BODIES)) == ["a"]


_KILLED = """
import sys, time
from pathlib import Path
from tests.support.integration.moving_lake import Log, configured
from tests.support.query.small_lake import Service
config = configured(Path(sys.argv[1]))
Log(config).write(["a"])
service = Service(config)
service.start()
assert service.execute("SELECT count(*) FROM logs").rows == [[1]]
print(service.folder, flush=True)
time.sleep(600)
"""


def test_what_a_killed_service_left_behind_goes_with_the_next_start(tmp_path: Path, start: Start) -> None:
    first = subprocess.Popen(
        dies_with_parent([sys.executable, "-c", _KILLED, str(tmp_path)]), stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    with first.stdout:
        said = (line.decode().strip() for line in first.stdout)
        left = next(Path(line) for line in said if line.startswith(str(tmp_path)))
        workers = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        first.wait()
    assert list(left.rglob("*.parquet"))
    service = start(configured(tmp_path))
    assert not left.exists()
    assert service.folder.parent == left.parent
    assert service.execute(COUNT).rows == [[1]]
    assert wait_until(lambda: not any(worker.is_running() for worker in workers), seconds_max=30)
