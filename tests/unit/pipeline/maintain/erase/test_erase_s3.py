"""Erasure where tables and log are in a bucket: no object holds what was erased."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from pathlib import Path

import pytest

from frazil.ledger import balance
from tests.components.s3 import S3Server
from tests.support.known_lake import KnownLake, unpacked

MARKER = "zanzibar"
ROWS = [("acme", f"u42 {MARKER}", 9, 0.0), ("acme", "u1 stays", 9, 0.0), ("globex", "u42 other", 9, 0.0)]


@pytest.mark.slow
def test_no_object_holds_what_was_erased(tmp_path: Path, moto_s3: S3Server) -> None:
    bucket = moto_s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    access = {
        "endpoint": moto_s3.endpoint,
        "access_key_id": moto_s3.access_key,
        "secret_access_key": moto_s3.secret_key,
        "allow_http": True,
    }
    lake = KnownLake(
        tmp_path,
        wal={"type": "s3", "s3": {"bucket": bucket, "prefix": "wal", **access}},
        lake={"warehouse": f"s3://{bucket}/warehouse", "s3": access},
    )
    with contextlib.closing(lake):
        lake.fill(ROWS)
        lake.write([("acme", f"u42 {MARKER} waits", 9, 0.0)])
        assert len(holding(lake, bucket)) >= 3
        report = lake.erase("attributes['user.id'] = 'u42'")
        assert report.is_proven
        assert report.rows_removed == 2
        assert holding(lake, bucket) == []
        assert lake.bodies() == Counter(["u1 stays", "u42 other"])
        assert balance(lake.config).problems == []
        assert any("versions" in each for each in report.outside)


def holding(lake: KnownLake, bucket: str) -> list[str]:
    io = lake.table().io
    return [
        file.path for file in io.walk(f"s3://{bucket}/") if MARKER.encode() in unpacked(io.read(file.path))
    ]
