from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from frazil.client.complete import SqlCompleter
from frazil.client.http_transport import HttpTransport
from frazil.client.prompt import Prompt, history_path, is_complete, open_history
from frazil.client.screen import Screen
from frazil.query.model import Query
from frazil.sql.functions import FUNCTIONS
from tests.support.client_api import Api


class Typed:
    """A prompt whose keys the test types and whose screen it reads."""

    def __init__(self, api: Api, keys: PipeInput) -> None:
        self.api = api
        self.keys = keys
        self.out, self.err = io.StringIO(), io.StringIO()
        screen = Screen(Console(file=self.out, width=100), Console(file=self.err, width=100))
        self.history = InMemoryHistory()
        self.prompt = Prompt(HttpTransport(api.url), screen, Query("", "", id="first"), history=self.history)

    def type(self, text: str) -> int:
        self.keys.send_text(text)
        return self.prompt.run()

    @property
    def asked(self) -> list[str]:
        return [seen.query["sql"] for seen in self.api.seen if seen.method == "POST"]


@pytest.fixture
def typed(api: Api) -> Iterator[Typed]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield Typed(api, keys)


def test_a_statement_is_sent_at_its_semicolon(typed: Typed) -> None:
    assert typed.type("SELECT n\rFROM logs;\r\\q\r") == 0
    assert typed.asked == ["SELECT n\nFROM logs;"]
    assert typed.out.getvalue().splitlines() == ["n", "─", "1"]
    assert "1 row · " in typed.err.getvalue()


@pytest.mark.parametrize("ending", ["\\q\r", "quit\r", "exit;\r", "\x04"])
def test_several_commands_quit(typed: Typed, ending: str) -> None:
    assert typed.type(ending) == 0
    assert typed.asked == []


def test_errors_never_end_the_prompt(typed: Typed) -> None:
    typed.api.refuse(400, "query_invalid", "there is no column x", position=7)
    typed.api.refusals.append((500, {}, b"not frazil's"))
    assert typed.type("SELECT x;\rSELECT 2;\rSELECT 3;\r\\q\r") == 0
    assert typed.asked == ["SELECT x;", "SELECT 2;", "SELECT 3;"]
    assert "  line 1: SELECT x;\n                 ^\n" in typed.err.getvalue()
    assert "1 row · " in typed.err.getvalue()


def test_ctrl_c_discards_the_line_and_an_empty_line_does_nothing(typed: Typed) -> None:
    assert typed.type("SELECT half\x03\r;\rSELECT 1;\r\\q\r") == 0
    assert typed.asked == ["SELECT 1;"]


def test_statements_are_added_to_the_history(typed: Typed) -> None:
    typed.type("SELECT 1;\r\\q\r")
    assert typed.history.get_strings() == ["SELECT 1;", "\\q"]


def test_each_query_has_its_own_id(typed: Typed) -> None:
    typed.type("SELECT 1;\rSELECT 2;\r\\q\r")
    ids = [seen.query["id"] for seen in typed.api.seen if seen.method == "POST"]
    assert len(set(ids)) == 2


def test_tables_and_columns_are_described(typed: Typed) -> None:
    typed.type("\\d\r\\d logs\r\\d otel.spans\r\\d lgs\r\\q\r")
    shown = typed.out.getvalue()
    assert "logs" in shown
    assert "4.2 MB" in shown
    assert "service_name  VARCHAR    Promoted" in shown
    assert "duration_nano" in shown
    assert "table lgs does not exist; tables: logs, spans" in typed.err.getvalue()


def test_the_format_can_be_chosen(typed: Typed, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    typed.api.table = pa.table({"n": [1, 2]})
    typed.type("\\format csv\rSELECT 1;\r\\format parquet\r\\format\r\\q\r")
    assert capfdbinary.readouterr().out == b"n\r\n1\r\n2\r\n"
    assert typed.err.getvalue().count("format: csv") == 3
    assert "to write files, use --output" in typed.err.getvalue()


def test_timing_can_be_hidden(typed: Typed) -> None:
    typed.type("\\timing\rSELECT 1;\r\\timing\r\\q\r")
    assert "1 row · " not in typed.err.getvalue()
    assert "are hidden" in typed.err.getvalue()
    assert "are shown" in typed.err.getvalue()


def test_as_of_applies_until_it_is_reset(typed: Typed) -> None:
    typed.type("\\asof 2026-11-15 10:00\rSELECT 1;\r\\asof nonsense\r\\asof now\rSELECT 2;\r\\q\r")
    first, second = (seen.query for seen in typed.api.seen if seen.method == "POST")
    assert first["as_of"] == "2026-11-15T10:00:00Z"
    assert "as_of" not in second
    assert "as of: 2026-11-15T10:00:00Z\n" in typed.err.getvalue()
    assert "'nonsense' is not a valid as-of value" in typed.err.getvalue()


def test_help_lists_the_commands_and_an_unknown_command_mentions_help(typed: Typed) -> None:
    typed.type("\\?\r\\x\r\\\r\\q\r")
    assert typed.out.getvalue().count("\\timing") == 2
    assert "unknown command \\x; \\? lists all commands" in typed.err.getvalue()


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; \n", True),
        ("\\d logs", True),
        ("quit", True),
        ("SELECT ';'", False),
    ],
)
def test_enter_submits_complete_statements_only(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


def completions(text: str, api: Api) -> list[str]:
    completer = SqlCompleter(HttpTransport(api.url).tables())
    found = completer.get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


def test_completion_offers_keywords_functions_tables_and_columns(api: Api) -> None:
    assert completions("SEL", api) == ["SELECT"]
    assert completions("sel", api) == ["select"]
    assert completions("SELECT attr_", api) == [
        function.name for function in FUNCTIONS if function.name.startswith("attr_")
    ]
    assert completions("SELECT 1 FROM ", api) == ["logs", "spans", "metric_steps"]
    assert completions("SELECT 1 FROM otel.l", api) == ["logs"]
    assert completions("SELECT dur", api) == ["duration_nano"]
    assert completions("SELECT 1 FROM logs WHERE serv", api) == ["service_name"]
    assert completions("SELECT 1 FROM logs WHERE dur", api) == []
    assert completions("SELECT ", api) == []


def test_completion_offers_the_commands(api: Api) -> None:
    assert completions("\\fo", api) == ["\\format"]
    assert completions("\\format c", api) == ["csv"]
    assert completions("\\d ", api) == ["logs", "spans"]


def test_only_the_owner_can_read_the_history(tmp_path: Path) -> None:
    path = history_path()
    assert path == tmp_path / "state" / "frazil" / "history"
    path.parent.mkdir(parents=True)
    path.touch(0o644)
    open_history(path).append_string("SELECT 1;")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(open_history(path).load_history_strings()) == ["SELECT 1;"]


def test_history_is_kept_in_memory_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(open_history(tmp_path / "file" / "history"), InMemoryHistory)


def test_history_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    assert history_path() == Path(os.path.expanduser("~")) / ".local/state/frazil/history"
