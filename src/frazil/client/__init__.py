"""Asks: `frazil.connect()` and `frazil query`. Over HTTP where the API runs, else the query service itself.

Nothing heavy is imported before it is needed: a question to a running API must not wait for Arrow, pydantic
or DuckDB to load.
"""

from frazil.client.connection import Connection, connect
from frazil.client.result import Result

__all__ = ["Connection", "Result", "connect"]
