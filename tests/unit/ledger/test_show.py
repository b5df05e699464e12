"""The ledger on terminals of several widths."""

from __future__ import annotations

import pytest

from frazil.ledger.balance import Ledger, LedgerLine
from frazil.ledger.show import _print
from frazil.wal.names import new_stream


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_figures_are_never_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = new_stream()
    line = LedgerLine("metrics", stream)
    line.durable, line.landed, line.removed = 123_456_789_012, 98_765_432_109, 1_234_567
    line.waiting, line.set_aside, line.bytes = 24_691_356_903, 7, 645_300
    _print(Ledger([line], []))
    text = capsys.readouterr().out
    for figure in ("123,456,789,012", "98,765,432,109", "1,234,567", "24,691,356,903", "645.3 kB"):
        assert figure in text
    assert stream[-4:] in text
    assert (stream[:15] in text) == (columns == 120)
