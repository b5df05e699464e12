"""The text of a view: tokens with their places, and problems that name a place. Uses sqlglot, not Spark."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlglot.dialects import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from frazil.config.source import ConfigProblem
from frazil.errors import ConfigError

SQL_BYTES_MAX = 64 * 1024
_TOKENS_MAX = 5_000
_DEPTH_MAX = 60
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_BLOCKS = {TokenType.CASE: 1, TokenType.END: -1}
_PLACE = re.compile(r"[Ll]ine (\d+), [Cc]ol:? (\d+)")


class ViewInvalid(ConfigError):
    """A view that cannot be declared."""

    def __init__(self, name: str, location: str, what: str, hint: str) -> None:
        super().__init__(str(ConfigProblem(location, f"view {name}", what, hint)))
        self.name = name


@dataclass(frozen=True)
class ViewText:
    """The SQL of one view and the file that it is in."""

    name: str
    path: Path
    sql: str

    @classmethod
    def read(cls, name: str, path: Path) -> ViewText:
        """Reads the file. Raises ViewInvalid if it is too large, not text, or has what no view may have."""
        try:
            with path.open("rb") as file:
                data = file.read(SQL_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ViewInvalid(name, str(path), f"cannot be read: {reason}", "correct `sql`") from None
        if len(data) > SQL_BYTES_MAX:
            what = f"has more than {SQL_BYTES_MAX} bytes"
            raise ViewInvalid(name, str(path), what, "a view is one short SELECT")
        try:
            return cls(name, path, data.decode())
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 text (at byte {error.start})"
            raise ViewInvalid(name, str(path), what, "save the file as UTF-8") from None

    def problem(self, start: int, what: str, hint: str) -> ViewInvalid:
        """Returns the error that names the line and column of a place in the text."""
        before = self.sql[: max(0, start)]
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        return ViewInvalid(self.name, f"{self.path}:{line}:{column}", what, hint)

    @cached_property
    def tokens(self) -> Tokens:
        """Raises ViewInvalid if the text cannot be split into tokens, or has too many."""
        for bad, hint in (("\x00", "remove it"), ("${", "write the value itself: Spark replaces variables")):
            if bad in self.sql:
                raise self.problem(self.sql.index(bad), f"{bad!r} is not allowed", hint)
        try:
            found = [token for token in Spark().tokenize(self.sql) if token.token_type != TokenType.SEMICOLON]
        except (TokenError, ParseError) as error:
            raise self.unreadable(error) from None
        except Exception as error:  # sqlglot also raises others on texts that are not SQL
            raise self.problem(0, f"cannot be read as SQL: {type(error).__name__}", _SHAPE_HINT) from None
        tokens = Tokens(self, tuple(found))
        if len(found) > _TOKENS_MAX:
            raise self.problem(found[_TOKENS_MAX].start, f"has more than {_TOKENS_MAX} words", _SHAPE_HINT)
        if (deep := next((at for at, depth in tokens.depths if depth > _DEPTH_MAX), None)) is not None:
            raise self.problem(found[deep].start, "is nested too deeply", "simplify the expression")
        return tokens

    def unreadable(self, error: Exception) -> ViewInvalid:
        """Returns the error for a text that sqlglot cannot read."""
        details = getattr(error, "errors", None)
        line, column, what = 1, 1, str(error).splitlines()[0] if str(error) else "not SQL"
        if details:
            line, column = int(details[0].get("line") or 1), int(details[0].get("col") or 1)
            column = max(1, column - len(details[0].get("highlight") or "") + 1)
            what = str(details[0].get("description") or what)
        elif place := _PLACE.search(str(error)):
            line, column = int(place[1]), int(place[2])
        what = f"cannot be read as Spark SQL: {what[:200]}"
        return ViewInvalid(self.name, f"{self.path}:{line}:{column}", what, _SHAPE_HINT)


_SHAPE_HINT = (
    "a view is SELECT date_trunc('minute', time) AS time, …, count(*) AS … FROM spans [WHERE …] GROUP BY ALL"
)


@dataclass(frozen=True)
class Tokens:
    """Consecutive tokens of a text."""

    text: ViewText
    tokens: tuple[Token, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, end: int) -> Tokens:
        return Tokens(self.text, self.tokens[first:end])

    def kind(self, at: int) -> TokenType | None:
        """Returns the type of the token at a place; None before the first and after the last."""
        return self.tokens[at].token_type if 0 <= at < len(self.tokens) else None

    @property
    def depths(self) -> Iterator[tuple[int, int]]:
        """Yields each place with the number of brackets that are open there, and of CASE without END."""
        depth = 0
        for at, token in enumerate(self.tokens):
            if token.token_type in _CLOSING:
                depth -= 1
            yield at, depth
            if token.token_type in _OPENING:
                depth += 1
            depth += _BLOCKS.get(token.token_type, 0)

    @property
    def start(self) -> int:
        return self.tokens[0].start if self.tokens else 0

    def problem(self, what: str, hint: str) -> ViewInvalid:
        return self.text.problem(self.start, what, hint)

    def as_text(self) -> str:
        """Returns the SQL without comments, with one space where there was any."""
        parts: list[str] = []
        end: int | None = None
        for token in self.tokens:
            if end is not None and token.end <= end:
                continue  # `10L` is several tokens with one text
            if end is not None and token.start > end + 1:
                parts.append(" ")
            parts.append(self.text.sql[token.start : token.end + 1])
            end = token.end
        return "".join(parts)

    def split(self, at: TokenType) -> list[Tokens]:
        """Splits at tokens of a type that are in no brackets."""
        cuts = [place for place, depth in self.depths if depth == 0 and self.kind(place) == at]
        bounds = [-1, *cuts, len(self)]
        return [self.part(first + 1, end) for first, end in itertools.pairwise(bounds)]

    def closing(self, opening: int) -> int:
        """Returns the place of the bracket that closes the one at `opening`; the end if there is none."""
        depth = 0
        for at in range(opening, len(self)):
            if self.kind(at) in _OPENING:
                depth += 1
            elif self.kind(at) in _CLOSING:
                depth -= 1
                if depth == 0:
                    return at
        return len(self)
