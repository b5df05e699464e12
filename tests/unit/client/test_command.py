from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from frazil.cli import app
from tests.components.process import wait_until
from tests.support.client_api import Api

ROWS = pa.table({"n": pa.array([1, None], pa.int64()), "name": ["a,b", "ü"]})


def query(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["query", *map(str, arguments)], input=input)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "frazil", "query", *arguments]


def test_a_table_has_statistics_below(api: Api) -> None:
    api.table = ROWS
    api.stats = {"files": 1, "files_total": 3, "bytes": 1500}
    result = query("SELECT 1", "--url", api.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["   n  name", "────  ────", "   1  a,b", "NULL  ü"]
    assert result.stderr.startswith("2 rows · 1 of 3 files · 1.5 kB · ")


def test_json_is_an_array_with_one_object_per_line(api: Api) -> None:
    api.table = ROWS
    result = query("SELECT 1", "--url", api.url, "--format", "json")
    assert json.loads(result.stdout) == [{"n": 1, "name": "a,b"}, {"n": None, "name": "ü"}]
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == ""
    api.table = ROWS.slice(0, 0)
    assert json.loads(query("SELECT 1", "--url", api.url, "--format", "json").stdout) == []


def test_json_makes_duplicate_column_names_unique(api: Api) -> None:
    arrays = [pa.array([number]) for number in range(4)]
    api.table = pa.Table.from_arrays(arrays, names=["n", "n", "n_1", "n"])
    result = query("SELECT 1", "--url", api.url, "--format", "json")
    assert json.loads(result.stdout) == [{"n": 0, "n_2": 1, "n_1": 2, "n_3": 3}]


def test_csv_arrow_and_parquet_are_written_as_the_api_sends_them(api: Api, tmp_path: Path) -> None:
    api.table = ROWS
    result = query("SELECT 1", "--url", api.url, "--format", "csv")
    assert list(csv.reader(io.StringIO(result.stdout))) == [["n", "name"], ["1", "a,b"], ["", "ü"]]
    result = query("SELECT 1", "--url", api.url, "--format", "arrow")
    assert pa.ipc.open_stream(result.stdout_bytes).read_all().equals(ROWS)
    result = query("SELECT 1", "--url", api.url, "--format", "parquet")
    assert pq.read_table(pa.BufferReader(result.stdout_bytes)).equals(ROWS)


@pytest.mark.parametrize("format", ["json", "csv", "arrow", "parquet"])
def test_the_file_suffix_determines_the_format(api: Api, tmp_path: Path, format: str) -> None:
    api.table = ROWS
    path = tmp_path / f"rows.{format}"
    result = query("SELECT 1", "--url", api.url, "--output", path)
    assert (result.exit_code, result.stdout) == (0, "")
    readers: dict[str, Any] = {
        "json": lambda: json.loads(path.read_text())[1],
        "csv": lambda: path.read_text().splitlines()[-1],
        "arrow": lambda: pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()[1],
        "parquet": lambda: pq.read_table(path).to_pylist()[1],
    }
    assert readers[format]() == (",ü" if format == "csv" else {"n": None, "name": "ü"})
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_table_can_be_written_to_a_file(api: Api, tmp_path: Path) -> None:
    api.table = ROWS
    assert query("SELECT 1", "--url", api.url, "--output", tmp_path / "rows.txt").exit_code == 0
    assert (tmp_path / "rows.txt").read_text().splitlines()[-1] == "NULL  ü"


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_failed_query_leaves_the_old_file(api: Api, tmp_path: Path, format: str) -> None:
    api.table = pa.table({"n": range(1000)})
    api.breaks_off = True
    path = tmp_path / f"rows.{format}"
    path.write_text("old")
    assert query("SELECT 1", "--url", api.url, "--output", path).exit_code == 2
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_missing_output_directory_is_an_error_without_traceback(api: Api, tmp_path: Path) -> None:
    result = query("SELECT 1", "--url", api.url, "--output", tmp_path / "no" / "rows.csv")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_sql_can_come_from_a_pipe(api: Api, arguments: tuple[str, ...]) -> None:
    assert query(*arguments, "--url", api.url, input="SELECT 'piped'").exit_code == 0
    assert api.seen[0].query["sql"] == "SELECT 'piped'"


@pytest.mark.parametrize("arguments", [(), ("-",), ("\\d logs",)])
def test_a_command_of_the_prompt_is_explained_elsewhere(api: Api, arguments: tuple[str, ...]) -> None:
    result = query(*arguments, "--url", api.url, input="\\d\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: backslash commands work only at the prompt: run `frazil query` in a terminal, or use "
        "SHOW TABLES and DESCRIBE logs\n"
    )
    assert api.seen == []


def test_sql_can_come_from_a_file(api: Api, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT 'kept'\n")
    assert query("--file", tmp_path / "q.sql", "--url", api.url).exit_code == 0
    assert api.seen[0].query["sql"] == "SELECT 'kept'\n"
    assert query("SELECT 1", "--file", tmp_path / "q.sql", "--url", api.url).exit_code == 2
    assert query("--file", tmp_path / "none.sql", "--url", api.url).exit_code == 2
    assert query("--url", api.url, input=" ").exit_code == 2


def test_every_option_reaches_the_api(api: Api, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("fz_secret\n")
    options = [
        "--param",
        "5",
        "--param",
        "cart",
        "--as-of",
        "snapshot:7",
        "--partial",
        "--limit-rows",
        "9",
        "--timeout",
        "500ms",
    ]
    result = query("SELECT ?", *options, "--url", api.url, "--api-key", f"@{tmp_path / 'key'}")
    assert result.exit_code == 0
    sent = api.seen[0].query
    assert sent["params"] == [5, "cart"]
    assert sent["as_of"] == {"snapshot": 7}
    assert (sent["partial"], sent["rows_max"], sent["seconds_max"]) == (True, 9, 0.5)
    assert api.seen[0].headers["authorization"] == "Bearer fz_secret"


def test_a_failed_query_shows_the_position_and_exits_with_1(api: Api) -> None:
    api.refuse(
        400, "query_invalid", "there is no column servce", position=7, hint="did you mean service_name?"
    )
    result = query("SELECT servce FROM logs", "--url", api.url)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: there is no column servce",
        "  line 1: SELECT servce FROM logs",
        "                 ^",
        "did you mean service_name?",
    ]
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "unauthenticated", 2),
        (403, "forbidden", 2),
        (403, "query_refused", 1),
        (422, "limit_reached", 1),
        (503, "store_unavailable", 1),
        (500, "internal", 1),
    ],
)
def test_the_exit_code_depends_on_the_error(api: Api, status: int, code: str, exit_code: int) -> None:
    api.refuse(status, code, "no")
    assert query("SELECT 1", "--url", api.url).exit_code == exit_code


def test_an_unreachable_api_exits_with_2() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        result = query("SELECT 1", "--url", url)
    assert result.exit_code == 2
    assert result.stderr == f"error: cannot reach {url}: Connection refused\n"


@pytest.mark.parametrize("arguments", [("--as-of", "yesterday"), ("--api-key", "@/nowhere/key")])
def test_invalid_options_exit_with_2(api: Api, arguments: tuple[str, str]) -> None:
    result = query("SELECT 1", "--url", api.url, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert api.seen == []


def test_warnings_about_stale_and_missing_data_go_to_standard_error(api: Api) -> None:
    api.stats = {"stale": "the catalog does not respond", "missing": ["a.parquet"]}
    result = query("SELECT 1", "--url", api.url, "--format", "csv")
    assert result.stdout == "n\n1\n"
    assert result.stderr.splitlines() == [
        "result may be stale: the catalog does not respond",
        "missing from the result: a.parquet",
    ]


def test_a_pipe_gets_every_row_untruncated(api: Api) -> None:
    api.table = pa.table({"n": range(1500), "text": ["x" * 300] * 1500})
    lines = query("SELECT 1", "--url", api.url).stdout.splitlines()
    assert len(lines) == 1502
    assert lines[-1] == "1499  " + "x" * 300
    assert "rows_max" not in api.seen[0].query


def on_terminal(arguments: list[str], columns: int = 60) -> tuple[int, str]:
    """The exit code and what a terminal of that width is sent."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(arguments, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    pieces = []
    try:
        while piece := os.read(leader, 65536):
            pieces.append(piece)
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(leader)
    return process.wait(30), b"".join(pieces).decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_limited_number_of_rows(api: Api) -> None:
    api.table = pa.table({"n": range(1500), "text": ["x" * 300 + "\x1b[31m"] * 1500})
    exit_code, shown = on_terminal(command("SELECT 1", "--url", api.url))
    assert exit_code == 0
    assert "x" * 50 + "…" in shown
    assert "… 1,400 more rows (use --format or LIMIT)" in shown
    assert "1,500 rows · " in shown
    assert "\x1b[31m" not in shown
    assert api.seen[0].query["rows_max"] == 10_000


def test_control_characters_do_not_reach_a_terminal_in_any_format(api: Api) -> None:
    api.table = pa.table({"text": ["evil\x1b]0;title\x07"]})
    for format in ("table", "json", "csv"):
        exit_code, shown = on_terminal(command("SELECT 1", "--url", api.url, "--format", format))
        assert exit_code == 0
        assert "evil" in shown
        assert "\x1b]0" not in shown


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_binary_formats_are_refused_on_a_terminal(api: Api, format: str) -> None:
    exit_code, shown = on_terminal(command("SELECT 1", "--url", api.url, "--format", format))
    assert exit_code == 2
    assert "--output FILE" in shown
    assert api.seen == []


def test_a_long_query_shows_its_progress(api: Api) -> None:
    api.hold = threading.Event()
    # Let go when it was asked how far it is: the bar is there then.
    threading.Thread(target=lambda: (api.watched.wait(30), api.hold and api.hold.set()), daemon=True).start()
    exit_code, shown = on_terminal(command("SELECT 1", "--url", api.url), columns=100)
    assert exit_code == 0
    assert "running" in shown
    assert "1 row · " in shown


def test_ctrl_c_cancels_the_query_and_exits_with_130(api: Api) -> None:
    api.hold = threading.Event()
    process = subprocess.Popen(
        command("SELECT 1", "--url", api.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert api.asked.wait(30)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (130, "", "cancelled\n")
    assert api.cancelled.is_set()
    id = api.seen[0].query["id"]
    assert (api.seen[-1].method, api.seen[-1].path) == ("DELETE", f"/api/v1/queries/{id}")


@pytest.mark.parametrize("format", ["csv", "json", "table"])
def test_a_closed_pipe_is_not_an_error(api: Api, format: str) -> None:
    api.table = pa.table({"n": range(50_000)})
    process = subprocess.Popen(
        command("SELECT 1", "--url", api.url, "--format", format),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(30) == 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_a_query_to_a_running_api_imports_no_heavy_modules(api: Api) -> None:
    code = (
        "import sys\n"
        "from frazil.client.command import QueryOptions, run\n"
        f"assert run(QueryOptions(sql='SELECT 1', url={api.url!r})) == 0\n"
        "heavy = {'pydantic', 'yaml', 'pyarrow', 'pandas', 'numpy', 'duckdb', 'pyiceberg', 'asyncio',\n"
        "         'prompt_toolkit', 'frazil.config'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_importing_frazil_imports_no_client() -> None:
    code = "import sys, frazil; print(sorted(m for m in sys.modules if m.startswith('frazil')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['frazil']"


def test_the_prompt_opens_on_a_terminal_and_ends_with_ctrl_d(api: Api) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command("--url", api.url),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(follower)
    shown = b""

    def read() -> None:
        nonlocal shown
        try:
            while piece := os.read(leader, 65536):
                shown += piece
                if b"\x1b[6n" in piece:
                    os.write(leader, b"\x1b[1;1R")  # where the cursor is, as a terminal answers
        except OSError:
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert wait_until(lambda: b"frazil>" in shown, seconds_max=30), shown
        os.write(leader, b"SELECT 'typed';\r")
        # Between two prompts the terminal is in line mode, where Ctrl-D never reaches the prompt.
        assert wait_until(lambda: b"frazil>" in shown.partition(b"1 row")[2], seconds_max=30), shown
        os.write(leader, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        os.close(leader)
    asked = [seen.query["sql"] for seen in api.seen if seen.method == "POST"]
    assert asked == ["SELECT 'typed';"]
