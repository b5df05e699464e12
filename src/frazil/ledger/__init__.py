"""The ledger: what was made durable, what has landed, what waits, what was set aside, and whether it adds up.

Reads everything and changes nothing.
"""

from frazil.ledger.balance import Ledger, LedgerLine, balance
from frazil.ledger.show import main

__all__ = ["Ledger", "LedgerLine", "balance", "main"]
