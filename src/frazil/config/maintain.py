"""Configuration of table maintenance."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from frazil.config.values import GIB, MIB, Bytes, Count, Rate, Seconds, Section, TenantId, bad_value

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400

StorageClass = Literal["STANDARD_IA", "ONEZONE_IA", "GLACIER_IR", "INTELLIGENT_TIERING"]


class CompactConfig(Section):
    enabled: bool = Field(True, description="Merge small files into large, sorted ones.")
    interval_seconds: Seconds = Field(60, gt=0, description="Interval between checks for files to merge.")
    target_bytes: Bytes = Field(
        512 * MIB,
        ge=1 * MIB,
        description="Target file size. Files of at least three quarters of it are not merged again.",
    )
    row_group_bytes: Bytes = Field(
        32 * MIB,
        ge=1 * MIB,
        description="Parquet row group size before compression. Readers skip whole row groups; a task holds "
        "a few of them in memory.",
    )
    fan_in: Count = Field(
        32,
        ge=2,
        le=1000,
        description="Number of files of similar size that are merged at a time while a day is open. With a "
        "higher value each row is rewritten less often, but more small files exist.",
    )
    file_cost_bytes: Bytes = Field(
        64 * MIB,
        ge=0,
        description="Cost of one file for its readers, in bytes. A merge runs if it rewrites at most this "
        "many bytes per file that it removes.",
    )
    closed_after_seconds: Seconds = Field(
        2 * HOUR_SECONDS,
        ge=0,
        description="A day is closed this long after its end. Its remaining small files are then merged.",
    )
    compression_level: Count = Field(6, ge=1, le=19, description="zstd level of merged files.")
    round_bytes_max: Bytes = Field(
        2 * GIB, ge=1 * MIB, description="Maximum bytes that one round reads from one table."
    )
    parallel_tasks: Count = Field(
        0,
        ge=0,
        description="Number of merges at the same time. 0: half of Spark's cores, which leaves cores for "
        "landing.",
    )
    merge_identical_spans: bool = Field(
        False,
        description="Keep one of several identical copies of a span, as client retries create them. The "
        "ledger counts the removed rows.",
    )


class ExpireConfig(Section):
    enabled: bool = Field(True, description="Delete old snapshots, and the files that only they need.")
    interval_seconds: Seconds = Field(600, gt=0, description="Interval between rounds.")
    snapshots_kept: Count = Field(100, ge=1, description="Number of newest snapshots per table to keep.")
    kept_seconds: Seconds = Field(
        1800,
        ge=0,
        description="Newer snapshots than this are also kept: running queries, on any engine, need them.",
    )
    hourly_tags: Count = Field(
        24,
        ge=0,
        le=10_000,
        description="Number of hourly tags `hour-YYYYMMDDTHH` to keep, for time-travel queries. Files that "
        "were merged since then are kept as long. 0: none.",
    )
    manifests_max: Count = Field(
        50, ge=2, description="With more small manifests than this, they are merged by partition."
    )


class OrphansConfig(Section):
    enabled: bool = Field(True, description="Delete files that no snapshot refers to.")
    interval_seconds: Seconds = Field(
        DAY_SECONDS, gt=0, description="Interval between rounds. Each round lists all files."
    )
    age_seconds: Seconds = Field(
        DAY_SECONDS,
        ge=HOUR_SECONDS,
        description="Minimum age of files to delete. Landing and merging discard work that takes longer than "
        "half of this and repeat it, so no file is deleted that may still be committed.",
    )


class RetentionRule(Section):
    table: str | None = Field(
        None, min_length=1, description="Table. Absent: all tables that are not derived.", examples=["logs"]
    )
    tenant: TenantId | None = Field(None, description="Tenant. Absent: all tenants.")
    where: str | None = Field(
        None,
        min_length=1,
        description="Rows to delete, as a SQL WHERE condition. Absent: all rows.",
        examples=["severity_number < 9"],
    )
    after_seconds: Seconds = Field(
        gt=0,
        description="Minimum age of a whole UTC day (of `time`), counted from the end of the day.",
        examples=["7d"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.where is not None and not self.where.strip():
            raise bad_value("is empty", "for example severity_number < 9", "where")
        return self


class RetentionConfig(Section):
    rules: tuple[RetentionRule, ...] = Field(
        (),
        description="Retention rules. All rules apply. Empty: all rows are kept forever, except in derived "
        "tables. Rules that name a derived table replace its built-in rules.",
    )
    interval_seconds: Seconds = Field(HOUR_SECONDS, gt=0, description="Interval between checks.")
    set_aside_seconds: Seconds = Field(
        30 * DAY_SECONDS, gt=0, description="How long unreadable data that was set aside is kept."
    )
    rewrite_round_bytes_max: Bytes = Field(
        2 * GIB,
        ge=1 * MIB,
        description="Maximum bytes of files that one round reads and rewrites in one table for rules with "
        "`where`. If more is due, the next round starts immediately. Files that are dropped as a whole do "
        "not count.",
    )
    confirm_share: Rate = Field(
        0.3,
        gt=0,
        le=1,
        description="If more than this share of a table's rows has been due for longer than "
        "clock_gap_seconds_max (for example after a new rule), no rows are deleted until `frazil maintain "
        "retention --confirm TABLE`. 1: no confirmation.",
    )
    confirm_rows_min: Count = Field(
        100_000, ge=0, description="Fewer such rows than this are deleted without confirmation."
    )
    clock_gap_seconds_max: Seconds = Field(
        2 * DAY_SECONDS,
        ge=DAY_SECONDS,
        description="Maximum time since the last retention round of a table. If more has passed, the "
        "pipeline was stopped or the clock is wrong: no rows are deleted until `frazil maintain retention "
        "--confirm TABLE`. Smaller clock errors are not detected. Must be at least twice interval_seconds, "
        "or twice the interval of a cron job that runs `frazil maintain`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clock_gap_seconds_max < 2 * self.interval_seconds:
            raise bad_value(
                "is less than twice interval_seconds, so each round would wait for confirmation",
                "raise it, or lower interval_seconds",
                "clock_gap_seconds_max",
            )
        return self


class TierConfig(Section):
    location: str = Field(
        min_length=1,
        description="Destination: an existing directory (for example on another disk) if the warehouse is a "
        "directory; otherwise s3://BUCKET/PREFIX, accessed with lake.s3. Must be outside of the warehouse.",
        examples=["s3://telemetry/colder"],
    )
    after_seconds: Seconds = Field(
        gt=0,
        description="Minimum age of a whole UTC day (of `time`), counted from the end of the day.",
        examples=["30d"],
    )
    storage_class: StorageClass | None = Field(
        None,
        description="S3 storage class. Absent: the bucket's default. Classes that need a restore before "
        "reading are not allowed.",
        examples=["STANDARD_IA"],
    )
    interval_seconds: Seconds = Field(HOUR_SECONDS, gt=0, description="Interval between checks.")
    round_bytes_max: Bytes = Field(
        10 * GIB, ge=1 * MIB, description="Maximum bytes that one round moves per table."
    )


class MaintainConfig(Section):
    enabled: bool = Field(
        True, description="Run maintenance in the pipeline. false: only `frazil maintain` runs it."
    )
    compact: CompactConfig = Field(CompactConfig(), description="Compaction of small files.")
    expire: ExpireConfig = Field(ExpireConfig(), description="Expiry of snapshots; merging of manifests.")
    orphans: OrphansConfig = Field(OrphansConfig(), description="Deletion of unreferenced files.")
    retention: RetentionConfig = Field(RetentionConfig(), description="Deletion of old rows.")
    tier: TierConfig | None = Field(
        None, description="Move the files of old days to another location. Absent: they stay."
    )
    storage_price: Rate = Field(
        0.023,
        ge=0,
        description="Price of one GB (10^9 bytes) per month, in any currency, for cost estimates.",
    )
