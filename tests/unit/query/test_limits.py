"""Each limit by its name, and a service that answers on after it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frazil.errors import LimitReached, Overloaded, QueryInvalid, RequestTooLarge
from frazil.query.model import Query
from frazil.query.validate import PARAMS_MAX
from tests.support.query.small_lake import Service, Told, rows_of, running

MIB = 1 << 20
ENDLESS = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
CRASHING = "SELECT json_structure(repeat('[',100000)||repeat(']',100000))"
DEAF = "SELECT levenshtein(repeat('a',300000), repeat('b',300000))"
CROSS = "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    limits: dict[str, Any] = {
        "memory_bytes_max": 128 * MIB,
        "temp_bytes_max": 4 * MIB,
        "rows_max": 10_000,
        "result_bytes_max": 12 * MIB,
        "seconds_max": 20,
    }
    with running(tmp_path_factory.mktemp("lake"), **limits) as service:
        yield service


@pytest.fixture(autouse=True)
def nothing_is_left(service: Service) -> Iterator[None]:
    yield
    assert service.execute("SELECT count(*) FROM logs").rows == [[rows_of("acme")]]
    until(lambda: service.queries._pool.alive == 3 and not service.queries._pool.running)
    until(lambda: not spilled(service), lambda: spilled(service))


def until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def spilled(service: Service) -> list[Path]:
    """Temporary files. The folders of workers that run are theirs."""
    # A folder may be deleted meanwhile, which `walk` passes over.
    found = [Path(folder, name) for folder, _, names in os.walk(service.folder / "spill") for name in names]
    return found + list(service.folder.glob("tmp*"))


def limit_of(service: Service, sql: str, **facts: Any) -> str:
    with pytest.raises(LimitReached) as reached:
        service.execute(sql, **facts)
    assert reached.value.limit in str(reached.value)
    return reached.value.limit


@pytest.mark.parametrize(
    "sql",
    [
        CROSS,
        ENDLESS,
        "SELECT sum(length(md5(repeat(i::VARCHAR, 1000)))) FROM range(1000000000) t(i)",
        "SELECT list_sum(list_transform(range(100000000), lambda x: hash(x) % 7))",
    ],
)
def test_time(service: Service, sql: str) -> None:
    begin = time.monotonic()
    assert limit_of(service, sql, seconds_max=0.5) in ("query.seconds_max", "query.memory_bytes_max")
    assert time.monotonic() - begin < 15  # it did not run to its end, which is far away


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 1000000000)",
        "SELECT list(i) FROM range(100000000) t(i)",
        "SELECT string_agg(i::VARCHAR, ',') FROM range(100000000) t(i)",
        "SELECT max(list_sort(range(500000000)))",
    ],
)
def test_memory(service: Service, sql: str) -> None:
    assert limit_of(service, sql, seconds_max=5.0) in ("query.memory_bytes_max", "query.seconds_max")


def test_temporary_files(service: Service) -> None:
    digits = " || ".join(f"md5((i * 10 + {n})::VARCHAR)" for n in range(10))
    numbered = (
        f"SELECT x, row_number() OVER (ORDER BY x) AS r FROM (SELECT {digits} AS x FROM range(700000) t(i))"
    )
    assert limit_of(service, f"SELECT sum(length(x) + r) FROM ({numbered})") == "query.temp_bytes_max"


def test_rows(service: Service) -> None:
    assert limit_of(service, "SELECT * FROM range(10001)") == "query.rows_max"
    assert len(service.execute("SELECT * FROM range(10000)").rows) == 10_000


def test_rows_that_were_asked_for_are_cut_and_said_to_be(service: Service) -> None:
    told = service.execute("SELECT * FROM range(10000)", rows_max=10)
    assert len(told.rows) == 10
    assert (told.stats.rows, told.stats.cut) == (10, True)
    assert not told.stats.missing, "that would be an alert: it is for what could not be read"
    assert (
        service.queries.registry.get_sample_value("frazil_query_incomplete_total", {"reason": "missing"}) == 0
    )
    assert not service.execute("SELECT * FROM range(10)", rows_max=10).stats.cut


@pytest.mark.parametrize("format_", ["json", "csv", "arrow"])
def test_bytes_of_a_result(service: Service, format_: Any) -> None:
    digits = " || ".join(f"md5((i * 50 + {n})::VARCHAR)" for n in range(60))
    sql = f"SELECT {digits} AS d FROM range(10000) t(i)"
    assert limit_of(service, sql, format=format_) == "query.result_bytes_max"


@pytest.mark.parametrize("format_", ["json", "csv", "arrow", "parquet"])
def test_one_huge_value(service: Service, format_: Any) -> None:
    assert limit_of(service, "SELECT repeat('x', 13000000)", format=format_) == "query.result_bytes_max"


def test_rendering_takes_no_more_memory_than_a_worker_may_have(service: Service) -> None:
    """Rows of a megabyte: 2,048 of them are what DuckDB hands over at a time."""
    sql = "SELECT repeat('é', 500000) || range FROM range(2048)"
    assert limit_of(service, sql) in ("query.result_bytes_max", "query.memory_bytes_max")


def test_the_length_of_a_question(service: Service) -> None:
    with pytest.raises(RequestTooLarge):
        service.execute("SELECT '" + "x" * 65536 + "'")


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ([1] * (PARAMS_MAX + 1), QueryInvalid),
        (["x" * (2 * MIB)], RequestTooLarge),
        ([[["x" * MIB]]], RequestTooLarge),
        ([2**64], QueryInvalid),
        ([float("nan")], QueryInvalid),
        ([float("inf")], QueryInvalid),
        ([b"bytes"], QueryInvalid),
        ([object()], QueryInvalid),
        (["\ud800"], QueryInvalid),
        ([{"a": {1, 2}}], QueryInvalid),
        ([1, 2], QueryInvalid),
        ([], QueryInvalid),
    ],
    ids=[
        "too many",
        "a long text",
        "a long text inside",
        "65 bits",
        "NaN",
        "infinity",
        "bytes",
        "an object",
        "half a character",
        "a set inside",
        "more than asked for",
        "fewer than asked for",
    ],
)
def test_parameters_that_cannot_be(service: Service, params: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        service.execute("SELECT $1", params=params)


@pytest.mark.parametrize(
    "value",
    [None, True, 1, -(2**63), 2**64 - 1, 1.5, "", "x", "é\x00", [1, None], {"a": [1]}, [], "' OR 1=1"],
)
def test_parameters_come_back_as_they_went(service: Service, value: Any) -> None:
    assert service.execute("SELECT $1", params=[value]).rows == [[value]]
    assert service.execute("SELECT ?", params=[value]).rows == [[value]]


def running_query(service: Service, id: str, sql: str = CROSS, **facts: Any) -> Future[Told]:
    asking = service.asking(sql, id=id, **facts)
    until(lambda: (at := service.progress("acme", id)) is not None and at.state == "running")
    return asking


def test_a_worker_that_is_killed_fails_its_query_and_no_other(service: Service) -> None:
    asking = running_query(service, "killed")
    worker = service.queries._running["acme", "killed"].worker
    assert worker is not None
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(LimitReached, match="worker process died"):
        asking.result(30)
    assert service.execute("SELECT 1").rows == [[1]]


def test_a_query_that_crashes_its_worker_is_logged_with_its_tenant_and_id(service: Service) -> None:
    with capture_logs() as logged, pytest.raises(LimitReached, match="worker process died"):
        service.execute(CRASHING, id="crashing")
    (crash,) = [entry for entry in logged if entry["event"] == "query worker crashed"]
    assert (crash["tenant"], crash["id"]) == ("acme", "crashing")
    assert crash["exit_code"] < 0


def test_a_query_that_does_not_stop_is_logged_with_its_tenant_and_id(service: Service) -> None:
    with capture_logs() as logged:
        assert limit_of(service, DEAF, id="deaf", seconds_max=0.5) == "query.seconds_max"
    killed = [(entry["event"], entry["tenant"], entry["id"]) for entry in logged if "id" in entry]
    assert ("query worker killed: the query did not stop when interrupted", "acme", "deaf") in killed
    assert "query worker crashed" not in [event for event, _, _ in killed]


def test_nothing_is_kept_of_tenants_that_ask_nothing(service: Service) -> None:
    for number in range(3):
        service.execute("SELECT 1", tenant=f"tenant{number}")
    until(lambda: not any(tenant.startswith("tenant") for tenant in service.queries._open_queries))
    assert not service.queries._pool._busy


def test_a_worker_that_is_killed_while_it_spills_leaves_nothing(service: Service) -> None:
    sql = "SELECT count(*) FROM (SELECT DISTINCT md5(i::VARCHAR) FROM range(900000) t(i)), range(100000000)"
    asking = running_query(service, "spills", sql)
    worker = service.queries._running["acme", "spills"].worker
    assert worker is not None
    folder = worker._folder
    assert folder is not None
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(LimitReached):
        asking.result(30)
    until(lambda: not folder.exists())


def test_cancelling_ends_a_query(service: Service) -> None:
    asking = running_query(service, "cancelled")
    assert service.run(_called(service.queries.cancel, "acme", "cancelled"))
    with pytest.raises(QueryInvalid, match="cancelled"):
        asking.result(30)
    assert service.progress("acme", "cancelled") is None
    assert not service.queries.cancel("acme", "cancelled")


def test_cancelling_twice_mixes_no_answers(service: Service) -> None:
    """The worker of a question that ends in haste is not handed on with half an answer in its pipe."""
    for _ in range(5):
        sql = "SELECT 'of the first' || i FROM range(10000) t(i), (SELECT count(*) FROM range(300000))"
        asking = service.asking(sql, id="twice")
        for _ in range(3):
            service.run(_called(service.queries.cancel, "acme", "twice"))
        others = [service.asking("SELECT 'of the second'", tenant) for tenant in ("acme", "globex")]
        assert [other.result(30).rows for other in others] == [[["of the second"]]] * 2
        asking.exception(30)


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def test_another_tenant_can_neither_see_nor_cancel_a_query(service: Service) -> None:
    asking = running_query(service, "mine")
    assert service.progress("globex", "mine") is None
    assert not service.run(_called(service.queries.cancel, "globex", "mine"))
    assert service.progress("acme", "mine") is not None
    service.run(_called(service.queries.cancel, "acme", "mine"))
    asking.exception(30)


def test_two_tenants_can_use_one_id(service: Service) -> None:
    first = running_query(service, "same")
    assert service.execute("SELECT 1", "globex", id="same").rows == [[1]]
    with pytest.raises(QueryInvalid, match="is already running"):
        service.execute("SELECT 1", "acme", id="same")
    service.run(_called(service.queries.cancel, "acme", "same"))
    first.exception(30)


def test_a_cancelled_client_frees_the_worker(service: Service) -> None:
    asking = running_query(service, "gone")
    asking.cancel()
    until(lambda: service.progress("acme", "gone") is None)


@pytest.mark.parametrize("how", ["closed unread", "closed after a part", "forgotten"])
def test_an_answer_that_nobody_reads_frees_the_worker(service: Service, how: str) -> None:
    sql = "SELECT repeat('x', 2200) || i FROM range(5000) t(i)"

    async def leave() -> None:
        answer = await service.queries.execute(Query(sql, "acme", id="left"))
        content: Any = answer.content
        if how == "closed after a part":
            await anext(content)
        if how != "forgotten":
            await content.aclose()

    service.run(leave())
    if how == "forgotten":
        service.run(_called(gc.collect))
    until(lambda: service.progress("acme", "left") is None)


def test_a_slow_reader_gets_all_and_holds_no_worker(service: Service) -> None:
    async def read() -> int:
        query = Query("SELECT repeat('x', 1500) || i FROM range(7000) t(i)", "acme", id="slow")
        answer = await service.queries.execute(query)
        total = 0
        async for chunk in answer.content:
            total += len(chunk)
            while service.queries.progress("acme", "slow") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the worker is done long before the reader
        return total

    assert service.run(read()) > 7000 * 1500


def test_a_worker_that_has_grown_is_replaced(service: Service) -> None:
    with pytest.raises(LimitReached):
        service.execute("SELECT repeat('x', 2000000) || i FROM range(2000) t(i)")
    until(lambda: service.queries._pool.alive == 3)
    for worker in list(service.queries._pool._all):
        resident = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1]) * 4096
        assert resident < 600 * MIB


# Ends


def children_of(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def test_close_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    before = children_of(os.getpid())
    with running(tmp_path, filled=False) as service:
        asking = service.asking(CROSS)
        until(lambda: bool(service.queries._pool.running))
        assert children_of(os.getpid()) > before
    with pytest.raises(Exception, match=r".*"):
        asking.result(30)
    assert children_of(os.getpid()) <= before
    assert list((tmp_path / "temp").iterdir()) == []


PARENT = """
import sys
from pathlib import Path
from tests.support.query.small_lake import running
with running(Path(sys.argv[1]), filled=False) as service:
    service.asking({sql!r})
    while not service.queries._pool.running or service.queries._pool.alive < 2:
        pass
    print(*[worker.pid for worker in service.queries._pool._all], flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_parent_leaves_no_worker_and_the_next_start_clears_its_files(tmp_path: Path) -> None:
    code = PARENT.format(sql=CROSS)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pids = [int(pid) for pid in _line(parent).split()]
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    parent.stdin.close()
    assert len(pids) == 3
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert len(list((tmp_path / "temp").iterdir())) == 1
    with running(tmp_path, filled=False) as service:
        assert list((tmp_path / "temp").iterdir()) == [service.folder]


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    while line := process.stdout.readline().decode():
        if line.replace(" ", "").strip().isdigit():
            return line
    raise AssertionError("the process ended")


def test_two_services_share_a_folder(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as one, running(tmp_path, workers=1) as other:
        assert one.folder != other.folder
        assert (
            one.execute("SELECT count(*) FROM logs").rows == other.execute("SELECT count(*) FROM logs").rows
        )


def test_files_are_for_nobody_else(service: Service) -> None:
    assert service.folder.stat().st_mode & 0o077 == 0


def test_answers_that_nobody_reads_count_as_questions(tmp_path: Path) -> None:
    with running(tmp_path, filled=False, queue_max=2, workers=1) as service:
        query = Query("SELECT 1", "acme")
        unread = [service.run(service.queries.execute(query)) for _ in range(3)]
        with pytest.raises(Overloaded, match=r"query\.queue_max"):
            service.execute("SELECT 1")
        assert service.execute("SELECT 1", "globex").rows == [[1]]
        service.run(unread.pop().content.aclose())
        assert service.execute("SELECT 1").rows == [[1]]
        assert service.execute("SELECT 1").rows == [[1]]
