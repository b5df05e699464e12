"""Where old files may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config, load_config
from frazil.errors import ConfigError

S3 = {"lake": {"warehouse": "s3://telemetry/lake"}}


def config_of(tier: dict[str, Any], **settings: Any) -> Config:
    return Config.model_validate({"maintain": {"tier": {"after_seconds": "30d", **tier}}, **settings})


def test_there_is_no_tier_by_default(tmp_path: Path) -> None:
    assert Config().maintain.tier is None
    assert Config().tier_location is None
    config = config_of({"location": "cold/"}, data_dir=tmp_path)
    assert config.tier_location == str(Path("cold").absolute())
    config = config_of({"location": "s3://telemetry/colder/", "storage_class": "GLACIER_IR"}, **S3)
    assert config.tier_location == "s3://telemetry/colder"


@pytest.mark.parametrize(
    ("tier", "rest", "text"),
    [
        ("{location: s3://b/cold, after_seconds: 1d}", "", "must be of the same kind as the warehouse"),
        (
            "{location: /cold, after_seconds: 1d}",
            "lake: {warehouse: s3://b/lake}",
            "must be of the same kind as the warehouse",
        ),
        ("{location: gs://b/cold, after_seconds: 1d}", "", "must be a directory or an s3:// URL"),
        ("{location: s3:///cold, after_seconds: 1d}", "lake: {warehouse: s3://b/lake}", "names no bucket"),
        ("{location: /d/warehouse/cold, after_seconds: 1d}", "data_dir: /d", "overlaps with"),
        ("{location: /d, after_seconds: 1d}", "data_dir: /d", "overlaps with"),
        ("{location: /d/wal/cold, after_seconds: 1d}", "data_dir: /d", "overlaps with"),
        (
            "{location: s3://b/lake/cold, after_seconds: 1d}",
            "lake: {warehouse: s3://b/lake}",
            "overlaps with",
        ),
        (
            "{location: /cold, after_seconds: 1d, storage_class: STANDARD_IA}",
            "",
            "applies to S3 only, but maintain.tier.location is a directory",
        ),
        (
            "{location: s3://b/cold, after_seconds: 1d, storage_class: DEEP_ARCHIVE}",
            "lake: {warehouse: s3://b/lake}",
            "STANDARD_IA",
        ),
        ("{location: /cold}", "", "after_seconds"),
    ],
)
def test_an_invalid_location_is_rejected_with_a_reason(
    tmp_path: Path, tier: str, rest: str, text: str
) -> None:
    file = tmp_path / "frazil.yaml"
    file.write_text(f"maintain: {{tier: {tier}}}\n{rest}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert text in str(caught.value)
    assert "maintain.tier" in str(caught.value)


def test_the_location_is_checked_later_if_a_rest_catalog_decides_it() -> None:
    rest = {"lake": {"catalog": {"type": "rest", "rest": {"uri": "https://x"}}}}
    assert config_of({"location": "s3://telemetry/colder"}, **rest).tier_location == "s3://telemetry/colder"
