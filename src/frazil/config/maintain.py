"""Keeping the tables: small, sorted, cheap, and no longer than they may be kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from frazil.config.section import Section
from frazil.config.values import GIB, MIB, Bytes, Count, Rate, Seconds, TenantId, bad_value

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400

StorageClass = Literal["STANDARD_IA", "ONEZONE_IA", "GLACIER_IR", "INTELLIGENT_TIERING"]


class CompactConfig(Section):
    enabled: bool = Field(True, description="Whether small files are merged into large, sorted ones.")
    interval_seconds: Seconds = Field(60, gt=0, description="How often to look for what is worth merging.")
    target_bytes: Bytes = Field(
        512 * MIB, ge=1 * MIB, description="The size of a file that is done. Three quarters of it will do."
    )
    row_group_bytes: Bytes = Field(
        32 * MIB,
        ge=1 * MIB,
        description="The size of a row group before compression, as Parquet counts it. Readers skip whole "
        "ones, and a task holds a few of them in memory.",
    )
    fan_in: Count = Field(
        32,
        ge=2,
        le=1000,
        description="While a day is open, so many files of about one size are merged at a time. More means "
        "that each row is written again less often, and that more small files lie about.",
    )
    file_cost_bytes: Bytes = Field(
        64 * MIB,
        ge=0,
        description="What a file costs its readers, as bytes that may be rewritten to be rid of it.",
    )
    closed_after_seconds: Seconds = Field(
        2 * HOUR_SECONDS,
        ge=0,
        description="A day is closed this long after its end; what is still small then is merged.",
    )
    compression_level: Count = Field(6, ge=1, le=19, description="zstd level of merged files.")
    round_bytes_max: Bytes = Field(
        2 * GIB, ge=1 * MIB, description="What one round of one table reads at most."
    )
    parallel_tasks: Count = Field(
        0,
        ge=0,
        description="Merges at the same time. 0: half of Spark's cores, so that landing always finds one.",
    )
    merge_identical_spans: bool = Field(
        False,
        description="Whether copies of one span that are alike in every field, as client retries make them, "
        "become one. The ledger counts what goes.",
    )


class ExpireConfig(Section):
    enabled: bool = Field(True, description="Whether old snapshots go, and the files only they need.")
    interval_seconds: Seconds = Field(600, gt=0, description="How often.")
    snapshots_kept: Count = Field(100, ge=1, description="The newest snapshots of a table stay.")
    kept_seconds: Seconds = Field(
        1800,
        ge=0,
        description="And all that are younger than this: queries that run, on any engine, need theirs.",
    )
    hourly_tags: Count = Field(
        24,
        ge=0,
        le=10_000,
        description="Tags `hour-YYYYMMDDTHH` for as many hours, to ask the tables as of then. Files "
        "that were merged meanwhile stay as long. 0: none.",
    )
    manifests_max: Count = Field(
        50, ge=2, description="Over so many small manifests they are merged, by partition."
    )


class OrphansConfig(Section):
    enabled: bool = Field(True, description="Whether files that no snapshot knows are removed.")
    interval_seconds: Seconds = Field(DAY_SECONDS, gt=0, description="How often. It lists all files.")
    age_seconds: Seconds = Field(
        DAY_SECONDS,
        ge=HOUR_SECONDS,
        description="How old they must be: older than anything that may still be committed. What took half "
        "as long to land or to merge is not committed, but done again.",
    )


class RetentionRule(Section):
    table: str | None = Field(
        None, min_length=1, description="The table. Absent: all of them.", examples=["logs"]
    )
    tenant: TenantId | None = Field(None, description="The tenant. Absent: all of them.")
    where: str | None = Field(
        None,
        min_length=1,
        description="Which rows go, as in SQL's WHERE. Absent: all.",
        examples=["severity_number < 9"],
    )
    after_seconds: Seconds = Field(
        gt=0,
        description="How old a whole day (UTC, by `time`) must be, counted from its end.",
        examples=["7d"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.where is not None and not self.where.strip():
            raise bad_value("is empty", "for example severity_number < 9", "where")
        return self


class RetentionConfig(Section):
    rules: tuple[RetentionRule, ...] = Field(
        (), description="What goes when. Every rule holds. Empty: all is kept for ever."
    )
    interval_seconds: Seconds = Field(HOUR_SECONDS, gt=0, description="How often to look.")
    set_aside_seconds: Seconds = Field(
        30 * DAY_SECONDS, gt=0, description="How long what could not be read is kept."
    )
    rewrite_round_bytes_max: Bytes = Field(
        2 * GIB,
        ge=1 * MIB,
        description="Bytes of files that one round of one table searches and rewrites for rules with "
        "`where`. While more is due, the next round begins at once. Files that are dropped do not count.",
    )
    confirm_share: Rate = Field(
        0.3,
        gt=0,
        le=1,
        description="If more than this share of a table's rows fell due longer than clock_gap_seconds_max "
        "ago, as with a new rule, a round removes nothing and waits for "
        "`frazil maintain retention --confirm TABLE`. 1: never wait.",
    )
    confirm_rows_min: Count = Field(
        100_000, ge=0, description="Fewer rows of that age than this are removed without a confirmation."
    )
    clock_gap_seconds_max: Seconds = Field(
        2 * DAY_SECONDS,
        ge=DAY_SECONDS,
        description="How far the clock may have moved since retention last looked at the table. If it has "
        "moved further, the pipeline was stopped or the clock is wrong: no rows are removed until "
        "`frazil maintain retention --confirm TABLE`. Smaller clock errors are not noticed. Must be at "
        "least twice interval_seconds, or twice the interval of a cron job that runs `frazil maintain`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clock_gap_seconds_max < 2 * self.interval_seconds:
            raise bad_value(
                "is less than twice interval_seconds", "raise it; otherwise each round waits to be confirmed",
                "clock_gap_seconds_max",
            )  # fmt: skip
        return self


class TierConfig(Section):
    location: str = Field(
        min_length=1,
        description="Where they go: a folder that is there, as on another disk, if the warehouse is one; "
        "else s3://BUCKET/PREFIX, reached with lake.s3. Never within the warehouse.",
        examples=["s3://telemetry/colder"],
    )
    after_seconds: Seconds = Field(
        gt=0,
        description="How old a whole day (UTC, by `time`) must be, counted from its end.",
        examples=["30d"],
    )
    storage_class: StorageClass | None = Field(
        None,
        description="S3's class of what is written there. Absent: the bucket's default. Classes that must "
        "be restored before they can be read are none of these.",
        examples=["STANDARD_IA"],
    )
    interval_seconds: Seconds = Field(HOUR_SECONDS, gt=0, description="How often to look.")
    round_bytes_max: Bytes = Field(10 * GIB, ge=1 * MIB, description="What one round of one table moves.")


class MaintainConfig(Section):
    enabled: bool = Field(True, description="Whether the pipeline keeps the tables by itself.")
    compact: CompactConfig = Field(default_factory=CompactConfig, description="Merging small files.")
    expire: ExpireConfig = Field(default_factory=ExpireConfig, description="Snapshots and manifests.")
    orphans: OrphansConfig = Field(default_factory=OrphansConfig, description="Files that nobody knows.")
    retention: RetentionConfig = Field(default_factory=RetentionConfig, description="How long rows are kept.")
    tier: TierConfig | None = Field(
        None, description="Files of old days go to another place. Absent: all stays in the warehouse."
    )
    storage_price: Rate = Field(
        0.023, ge=0, description="Of a GB (1000^3 bytes) for a month, in any currency: for the estimate."
    )
