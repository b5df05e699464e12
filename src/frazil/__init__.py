"""An OpenTelemetry lakehouse. `frazil.connect()` asks it SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.client import connect as connect

__all__ = ["__version__", "connect"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # On first use: `import frazil` stays free, and the receiver never loads a client.
    if name == "connect":
        from importlib import import_module

        return import_module("frazil.client").connect
    raise AttributeError(f"module 'frazil' has no attribute {name!r}")
