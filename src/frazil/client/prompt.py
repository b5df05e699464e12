"""`frazil query` without SQL: a prompt with history and completion."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]

from frazil import __version__
from frazil.client.complete import COMMANDS, SqlCompleter
from frazil.client.connection import new_id
from frazil.client.output import FORMATS, OutputFormat, Rows, print_line, print_table
from frazil.client.query import describe_as_of, parse_as_of
from frazil.client.screen import Screen, execute_and_print
from frazil.client.text_format import bytes_text, cell_text
from frazil.client.transport import Transport
from frazil.errors import FrazilError
from frazil.query.model import Query, ResultColumn, Stats, TableInfo

_QUIT = ("\\q", "quit", "exit")
_ON_SCREEN: tuple[OutputFormat, ...] = ("table", "json", "csv")


def history_path() -> Path:
    """Return the history file, according to the XDG base directory specification."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return folder / "frazil" / "history"


def open_history(path: Path) -> History:
    """Open the history file, readable by its owner only. Falls back to memory if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def is_complete(text: str) -> bool:
    """Return True if Enter submits the text: a command, nothing, or SQL that ends with a semicolon."""
    text = text.strip()
    return not text or text.startswith("\\") or text.lower() in _QUIT or text.endswith(";")


class Prompt:
    def __init__(
        self,
        transport: Transport,
        screen: Screen,
        query: Query,
        format: OutputFormat = "table",
        history: History | None = None,
    ) -> None:
        self._transport = transport
        self._screen = screen
        self._query = query
        self._format = format
        self._timing = True
        self._completer = SqlCompleter()
        self._history = open_history(history_path()) if history is None else history

    def run(self) -> int:
        session: PromptSession[str] = PromptSession(
            multiline=True,
            completer=self._completer,
            complete_while_typing=True,
            history=self._history,
            lexer=PygmentsLexer(SqlLexer),
            key_bindings=_submit_on_enter(),
            prompt_continuation=lambda width, *_: "… ".rjust(width),
        )
        self._screen.message(
            f"frazil {__version__}, connected to {self._transport.address}. \\? for help, \\q to quit."
        )
        threading.Thread(target=self._load_tables, name="frazil-tables", daemon=True).start()
        while True:
            try:
                text = session.prompt("frazil> ").strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return 0
            if text.rstrip(";").strip().lower() in _QUIT:
                return 0
            self.handle(text)

    def handle(self, text: str) -> None:
        """Run one command or SQL statement. Errors are printed, not raised."""
        try:
            if text.startswith("\\"):
                self._command(*text[1:].split())
            elif text.strip("; \n"):
                self._execute(text)
        except FrazilError as error:
            self._screen.error(error, text)
        except KeyboardInterrupt:
            self._screen.message("cancelled", "yellow")
        except (OSError, ValueError) as error:
            self._screen.message(f"error: {error}", "red")

    def _execute(self, sql: str) -> None:
        query = dataclasses.replace(self._query, sql=sql, id=new_id())
        execute_and_print(self._transport, query, self._screen, format=self._format, timing=self._timing)

    def _command(self, name: str = "?", *arguments: str) -> None:
        first = arguments[0].rstrip(";") if arguments else None
        match name.rstrip(";"):
            case "d" if first is None:
                self._show_tables()
            case "d" if first is not None:
                self._show_columns(first)
            case "format":
                self._choose_format(first)
            case "timing":
                self._timing = not self._timing
                self._screen.message(f"statistics are {'shown' if self._timing else 'hidden'}")
            case "asof":
                self._set_as_of(" ".join(arguments).rstrip(";"))
            case "?":
                for command, meaning in COMMANDS.items():
                    print_line(self._screen.out, [(f"{command:<9}", "bold"), (meaning, "")])
            case other:
                self._screen.message(f"unknown command \\{other}; \\? lists all commands", "yellow")

    def _choose_format(self, name: str | None) -> None:
        chosen = next((format for format in FORMATS if format == name), None)
        if chosen in _ON_SCREEN:
            self._format = chosen
        elif name is not None:
            self._screen.message(
                f"the prompt supports {', '.join(_ON_SCREEN)}; to write files, use --output", "yellow"
            )
        self._screen.message(f"format: {self._format}")

    def _set_as_of(self, text: str) -> None:
        if text:
            as_of = None if text == "now" else parse_as_of(text)
            self._query = dataclasses.replace(self._query, as_of=as_of)
        current = self._query.as_of
        self._screen.message("as of: now" if current is None else f"as of: {describe_as_of(current)}")

    def _show_tables(self) -> None:
        tables = self._tables()
        columns = _columns(table="", rows="BIGINT", waiting="BIGINT", files="BIGINT", size="BIGINT", about="")
        rows = [[t.name, t.rows, t.tail_rows, t.files, bytes_text(t.bytes), t.doc] for t in tables]
        print_table(Rows(columns, rows, Stats()), self._screen.out)

    def _show_columns(self, name: str) -> None:
        table = next((t for t in self._tables() if t.name == name.removeprefix("otel.")), None)
        if table is None:
            names = ", ".join(t.name for t in self._completer.tables)
            self._screen.message(f"table {cell_text(name)} does not exist; tables: {names}", "yellow")
            return
        rows = [[c.name, c.type, c.doc] for c in table.columns]
        print_table(Rows(_columns(column="", type="", about=""), rows, Stats()), self._screen.out)

    def _tables(self) -> list[TableInfo]:
        self._completer.tables = tables = list(self._transport.tables())
        return tables

    def _load_tables(self) -> None:
        try:
            self._tables()
        except (FrazilError, RuntimeError):
            # Completion works without tables; the next query will report the error.
            return


def _columns(**types: str) -> list[ResultColumn]:
    return [ResultColumn(name, type) for name, type in types.items()]


def _submit_on_enter() -> KeyBindings:
    bindings = KeyBindings()
    complete = Condition(lambda: is_complete(get_app().current_buffer.text))

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER) & complete)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings
