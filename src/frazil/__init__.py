"""An OpenTelemetry lakehouse. `frazil.connect()` opens a connection for SQL queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.client import connect as connect

__all__ = ["__version__", "connect"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported on first use: `import frazil` stays fast, and the receiver never loads the client.
    if name == "connect":
        from importlib import import_module

        return import_module("frazil.client").connect
    raise AttributeError(f"module 'frazil' has no attribute {name!r}")
