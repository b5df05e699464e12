"""`frazil query` and `frazil.connect()` against real data: asked over the API, and without one."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.client import Connection
from frazil.client.connection import new_id
from frazil.client.screen import Screen, execute_and_print
from frazil.errors import FrazilError, LimitReached, QueryInvalid, QueryRefused
from frazil.query.model import Query
from tests.components.process import answers, dies_with_parent, end, free_port, wait_until
from tests.support.integration import messages
from tests.support.integration.clients import post
from tests.support.receiver import Receiver, running_receiver

RECORDS = 50
ALL = "SELECT time, body, service_name, severity_number, attributes FROM logs ORDER BY body"

LONG = "SELECT count(*) FROM range(100000000000) WHERE range % 3 = hash(range) % 7"


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Records that wait in the WAL: nothing lands here."""
    settings = {"serve": {"listen": f"127.0.0.1:{free_port()}"}, "query": {"workers": 1}}
    with running_receiver(tmp_path_factory.mktemp("query-cli"), settings) as running:
        request = messages.logs("cart", RECORDS)
        for number, record in enumerate(request.resource_logs[0].scope_logs[0].log_records):
            if number % 2:
                record.attributes.add(key="http.response.status_code").value.int_value = 200 + number
                items = record.attributes.add(key="cart").value.kvlist_value.values.add(key="items")
                items.value.array_value.values.add().int_value = number
        request.resource_logs[0].scope_logs[0].log_records[
            0
        ].body.string_value = "Connection was REFUSED, ü\n,"
        assert post(running, "logs", request.SerializeToString()).status_code == 200
        yield running


@pytest.fixture(scope="module")
def served(receiver: Receiver) -> Iterator[str]:
    """The URL of `frazil serve` over those records."""
    port = int(receiver.config.serve.listen.rpartition(":")[2])
    with (receiver.folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            dies_with_parent(
                [sys.executable, "-m", "frazil", "--config", str(receiver.config_path), "serve"]
            ),
            stdout=log,
            stderr=log,
            cwd=receiver.folder,
        )
    try:
        ready = wait_until(
            lambda: answers(port, "/readyz", lambda status: status == 200),
            seconds_max=60,
            give_up=lambda: process.poll() is not None,
        )
        assert ready, (receiver.folder / "serve.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process, 20)


@pytest.fixture(scope="module")
def alone(receiver: Receiver) -> Path:
    """A configuration of the same data whose API never runs."""
    path = receiver.folder / "alone.yaml"
    text = receiver.config_path.read_text().replace(receiver.config.serve.listen, "127.0.0.1:0")
    path.write_text(text)
    return path


@pytest.fixture(scope="module", params=["over the API", "embedded"])
def db(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[Connection]:
    if request.param == "embedded":
        target: dict[str, Any] = {"config": request.getfixturevalue("alone")}
    else:
        target = {"url": request.getfixturevalue("served")}
    with frazil.connect(**target) as db:
        yield db


def run(config: Path, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "frazil", "--config", str(config), "query", *arguments],
        input=None if input is None else input.encode(),
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_arrow_pandas_polars_and_rows_agree(db: Connection) -> None:
    result = db.sql(ALL)
    assert len(result) == RECORDS
    table = result.arrow()
    rows = result.rows()
    assert [row[1] for row in rows] == table["body"].to_pylist()
    frame, polar = result.pandas(), result.polars()
    for place, name in enumerate(("time", "body", "service_name", "severity_number")):
        expected = [row[place] for row in rows]
        assert polar[name].to_list() == expected
        assert list(frame[name].astype(object).where(frame[name].notna(), None)) == expected
    assert [row[4] for row in rows] == list(frame["attributes"])
    assert polar["attributes"].to_list() == [row[4] for row in rows]


def test_the_answer_says_that_the_rows_have_not_landed(db: Connection) -> None:
    stats = db.sql("SELECT count(*) FROM logs").stats
    assert (stats.rows, stats.tail_rows, stats.stale, list(stats.missing)) == (1, RECORDS, None, [])


def test_parameters_stand_for_question_marks_and_numbers(db: Connection) -> None:
    assert db.sql("SELECT count(*) FROM logs WHERE service_name = ?", ["cart"]).rows() == [(RECORDS,)]
    assert db.sql("SELECT $2, $1", [1.5, "x"]).rows() == [("x", 1.5)]
    moment = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert db.sql("SELECT count(*) FROM logs WHERE time > ?", [moment]).rows() == [(RECORDS,)]


def test_text_search_and_typed_attributes(db: Connection) -> None:
    assert db.sql("SELECT count(*) FROM logs WHERE search(body, 'refused connection')").rows() == [(1,)]
    found = db.sql("SELECT max(attr_int(attributes, 'http.response.status_code')) FROM logs").rows()
    assert found == [(200 + RECORDS - 1,)]
    nested = "attr_json(attributes, 'cart.items[0]')::BIGINT"
    found = db.sql(f"SELECT attr_json(attributes, 'cart')::VARCHAR FROM logs ORDER BY {nested} DESC LIMIT 1")
    assert found.rows() == [(f'{{"items":[{RECORDS - 1}]}}',)]
    assert db.sql(f"SELECT max({nested}) FROM logs WHERE service_name = 'cart'").rows() == [(RECORDS - 1,)]
    names = db.sql("SELECT severity_name(10), kind_name(2), status_name(2)").rows()
    assert names == [("INFO2", "server", "error")]


def test_errors_keep_their_kind_and_place(db: Connection) -> None:
    sql = "SELECT servce_name FROM logs"
    with pytest.raises(QueryInvalid, match="service_name") as caught:
        db.sql(sql)
    assert caught.value.position == sql.index("servce_name")
    with pytest.raises(QueryRefused):
        db.sql("SELECT * FROM read_csv('/etc/passwd')")
    with pytest.raises(LimitReached):
        db.sql("SELECT count(*) FROM range(1000000000) a, range(1000000000) b", seconds_max=0.5)
    assert db.sql("SELECT 1").rows() == [(1,)]


def test_rows_over_the_limit_asked_for_are_cut(db: Connection) -> None:
    assert len(db.sql(ALL, rows_max=7)) == 7


def test_tables_say_what_waits(db: Connection) -> None:
    tables = {table.name: table for table in db.tables()}
    assert {"logs", "spans", "metrics", "events"} <= set(tables)
    assert (tables["logs"].rows, tables["logs"].tail_rows) == (0, RECORDS)
    assert "service_name" in [column.name for column in tables["logs"].columns]


def test_a_running_query_is_watched_and_cancelled_by_its_id(db: Connection) -> None:
    transport, id = db._transport, new_id()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(
            lambda: b"".join(transport.execute(Query(LONG, "", format="csv", id=id)).content)
        )

        def is_running() -> bool:
            progress = transport.progress(id)
            return progress is not None and progress.state == "running"

        assert wait_until(is_running, seconds_max=30)
        assert transport.cancel(id)
        with pytest.raises(FrazilError):
            asking.result(30)
    assert transport.progress(id) is None
    assert not transport.cancel(id)
    assert db.sql("SELECT 1").rows() == [(1,)]


def test_every_format_is_read_back_equal(db: Connection, tmp_path: Path) -> None:
    sql = "SELECT body, severity_number, attributes['http.response.status_code'] AS code FROM logs ORDER BY 1"
    expected = db.sql(sql).arrow()
    for format in ("arrow", "parquet", "json", "csv"):
        execute_and_print(
            db._transport,
            Query(sql, "", id=new_id()),
            Screen(),
            format=format,
            output=tmp_path / f"rows.{format}",
        )
    assert pa.ipc.open_stream((tmp_path / "rows.arrow").read_bytes()).read_all().equals(expected)
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == expected.to_pylist()
    assert json.loads((tmp_path / "rows.json").read_text()) == expected.to_pylist()
    read = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text(), newline="")))
    assert read == [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for row in expected.to_pylist()
    ]


@pytest.fixture(scope="module", params=["over the API", "embedded"])
def config(request: pytest.FixtureRequest, receiver: Receiver) -> Path:
    """What the command is given. The running API is found through it."""
    if request.param == "over the API":
        request.getfixturevalue("served")
        return receiver.config_path
    found: Path = request.getfixturevalue("alone")
    return found


def test_a_table_is_printed_with_what_it_was_made_of(config: Path) -> None:
    done = run(config, "-", input="SELECT service_name, count(*) AS n FROM logs GROUP BY ALL;")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines()[0::2] == ["service_name   n", "cart          50"]
    assert f"{RECORDS} rows not yet landed" in done.stderr.decode()


def test_what_the_error_says_is_not_logged_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.db").write_text("no database")
    path = tmp_path / "frazil.yaml"
    path.write_text(f"data_dir: {tmp_path / 'data'}\nserve: {{listen: '127.0.0.1:{free_port()}'}}\n")
    done = run(path, "SELECT count(*) FROM logs")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == "error: the catalog is unavailable: file is not a database\n"


def test_a_mistake_is_marked_and_ends_with_1(receiver: Receiver, served: str) -> None:
    done = run(receiver.config_path, "SELECT servce_name FROM logs")
    assert done.returncode == 1
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    mark = next(line for line in lines if line.strip() == "^")
    quoted = lines[lines.index(mark) - 1]
    assert quoted[mark.index("^") :].startswith("servce_name")


def interrupted(config: Path, when: Callable[[int], bool]) -> tuple[int, bytes, str]:
    """Exit code and output of a query that gets Ctrl-C when `when` holds, with all its group."""
    process = subprocess.Popen(
        [sys.executable, "-m", "frazil", "--config", str(config), "query", LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: when(process.pid), seconds_max=60)
        workers = _workers(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        end(process)
    assert wait_until(lambda: not any(map(_is_alive, workers)), seconds_max=10), (
        "a worker outlived the command"
    )
    return process.returncode, stdout, stderr.decode()


def test_ctrl_c_ends_a_query_that_the_api_runs_with_130(receiver: Receiver, served: str) -> None:
    def is_asking(pid: int) -> bool:
        return any(name.startswith("socket:") for name in _open_files(pid))

    assert interrupted(receiver.config_path, is_asking) == (130, b"", "cancelled\n")


@pytest.mark.slow
def test_ctrl_c_ends_a_query_in_the_commands_own_worker_with_130(alone: Path) -> None:
    def is_computing(pid: int) -> bool:
        return any(_cpu_ticks(worker) > 300 for worker in _workers(pid))  # past its imports

    code, stdout, stderr = interrupted(alone, is_computing)
    assert (code, stdout) == (130, b""), stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_ctrl_c_while_it_starts_leaves_nothing_behind(alone: Path) -> None:
    code, stdout, stderr = interrupted(alone, lambda pid: bool(_workers(pid)))
    assert (code, stdout) == (130, b""), stderr
    assert "Traceback" not in stderr


def _workers(pid: int) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def _open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
def test_a_script_without_a_main_guard_can_ask_embedded(alone: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import frazil\n"
        f"db = frazil.connect(config={str(alone)!r})\n"
        "print(db.sql('SELECT count(*) FROM logs').rows())\n"
        "db.close()\n"
        "db.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"[({RECORDS},)]\n"), done.stderr


def test_another_tenant_sees_none_of_it(alone: Path) -> None:
    with frazil.connect(config=alone, tenant="other") as db:
        assert db.sql("SELECT count(*) FROM logs").rows() == [(0,)]
