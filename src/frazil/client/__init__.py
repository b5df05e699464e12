"""`frazil.connect()` and `frazil query`: over HTTP if the API runs, otherwise with an embedded query service.

Heavy modules are imported late: a query to a running API must not wait for Arrow, pydantic or DuckDB.
"""

from frazil.client.connection import Connection, connect
from frazil.client.result import Result

__all__ = ["Connection", "Result", "connect"]
