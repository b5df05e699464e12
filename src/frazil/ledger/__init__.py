"""The ledger: compares the rows in the write-ahead log with the rows in the tables. Start at `balance`.

Reads everything and changes nothing.
"""

from frazil.ledger.balance import Ledger, LedgerLine, balance
from frazil.ledger.show import main

__all__ = ["Ledger", "LedgerLine", "balance", "main"]
