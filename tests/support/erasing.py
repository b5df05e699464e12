"""Rows to erase and rows that stay, and what tests of erasure assert."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile

from frazil.ledger import balance
from tests.support.known_lake import KnownLake, holding

WHERE = "attributes['user.id'] = 'u42'"
MARKER = "zanzibar"
"""A text that is in every row to erase, and in no other."""
GONE = [("acme", f"u42 {MARKER} {number}", 9, float(number % 2)) for number in range(6)]
STAY = [("acme", f"u{number} stays", 9, float(number % 2)) for number in range(6)]
OTHERS = [("globex", f"u42 of globex {number}", 9, float(number % 2)) for number in range(4)]
LEFT = Counter(body for _, body, _, _ in (*STAY, *OTHERS))


def data_dir(lake: KnownLake) -> Path:
    return lake.config.data_dir


def assert_erased(lake: KnownLake) -> None:
    assert holding(data_dir(lake), MARKER) == []
    assert lake.bodies() == LEFT
    assert balance(lake.config).problems == []


def refused(lake: KnownLake, error: type[Exception], match: str, where: str = WHERE, **options: Any) -> None:
    location, wal = lake.table().metadata_location, sorted(data_dir(lake).glob("wal/**/*"))
    with pytest.raises(error, match=match):
        lake.erase(where, **options)
    assert lake.table().metadata_location == location
    assert sorted(data_dir(lake).glob("wal/**/*")) == wal


def torn(path: str) -> bytes:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    return data


def file_of(lake: KnownLake, tenant: str) -> str:
    return min(path for path in lake.data_files() if f"tenant_id={tenant}" in path)


def copy_of(file: DataFile, suffix: str) -> DataFile:
    """The same rows under another name, as a merge of one file would write them."""
    path = file.file_path.replace(".parquet", f"{suffix}.parquet")
    shutil.copy(file.file_path, path)
    copy = DataFile(*file._data)
    copy._data[1] = path
    copy.spec_id = file.spec_id
    return copy
