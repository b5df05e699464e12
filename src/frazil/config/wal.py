"""The write-ahead log: where requests are made durable."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.s3 import S3Connection
from frazil.config.section import Section
from frazil.config.values import KIB, MIB, Bytes, Count, Seconds, bad_value


class LocalWalConfig(Section):
    path: Path | None = Field(
        None,
        description="The folder of segments, on a disk that honours fsync. Absent: wal below data_dir.",
    )
    free_bytes_min: Bytes = Field(
        512 * MIB,
        ge=0,
        description="Below this much free disk the receiver refuses (503) rather than fill the disk.",
    )


class S3WalConfig(S3Connection):
    bucket: str = Field(min_length=1, description="The bucket; it must exist.", examples=["telemetry"])
    prefix: str = Field("wal", description="What the names of all objects begin with.")
    request_timeout_seconds: Seconds = Field(
        3, gt=0, description="The longest wait for one request to the store; it is then tried again."
    )


class KafkaTopics(Section):
    logs: str = Field("otlp_logs", min_length=1, description="The topic of logs.")
    spans: str = Field("otlp_spans", min_length=1, description="The topic of spans.")
    metrics: str = Field("otlp_metrics", min_length=1, description="The topic of metrics.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.logs, self.spans, self.metrics}) < 3:
            raise bad_value(
                "is a topic of another signal too", "give logs, spans and metrics a topic each", "logs"
            )
        return self


class KafkaSasl(Section):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="How the broker asks for the password."
    )
    username: str = Field(min_length=1, description="The user.", examples=["frazil"])
    password: SecretStr = Field(
        description="Better given as FRAZIL_WAL__KAFKA__SASL__PASSWORD.", examples=["secret"]
    )


class KafkaTls(Section):
    ca_file: Path | None = Field(
        None, description="Authorities (PEM) of the brokers' certificates. Absent: those of the system."
    )
    cert_file: Path | None = Field(None, description="This client's certificate (PEM), for mTLS.")
    key_file: Path | None = Field(None, description="Its private key (PEM, PKCS#8, without a password).")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise bad_value("needs key_file beside it", "give both, or neither", "cert_file")
        return self


class KafkaTenant(Section):
    source: Literal["header", "key", "fixed"] = Field(
        "header",
        description="Where a message's tenant comes from: a header, the message's key, or always "
        "tenants.default. A message without a valid one belongs to tenants.default.",
    )
    header: str = Field("frazil-tenant", min_length=1, description="The header's name, for source header.")


class KafkaConfig(Section):
    brokers: tuple[str, ...] = Field(
        min_length=1, description="host:port of some brokers.", examples=[["kafka-1:9092", "kafka-2:9092"]]
    )
    topics: KafkaTopics = Field(default_factory=KafkaTopics, description="The topic of each signal.")
    encoding: Literal["otlp_proto", "otlp_json"] = Field(
        "otlp_proto", description="What messages hold, as the Collector's Kafka exporter names it."
    )
    tenant: KafkaTenant = Field(default_factory=KafkaTenant, description="Whose data a message is.")
    sasl: KafkaSasl | None = Field(
        None, description="{mechanism, username, password}. Absent: none is given."
    )
    tls: KafkaTls | None = Field(
        None, description="TLS to the brokers: {ca_file, cert_file, key_file}, or {}. Absent: plain text."
    )
    message_bytes_max: Bytes = Field(
        900_000,
        ge=1 * KIB,
        description="Larger requests are split. Below the brokers' message.max.bytes (1 MB by default).",
    )
    compression: Literal["none", "gzip", "lz4", "zstd"] = Field(
        "zstd", description="How batches of messages are compressed. Costs CPU, saves network and disk."
    )
    partitions: Count = Field(
        4, ge=1, le=10_000, description="Partitions of a topic that frazil creates because it is missing."
    )
    replication_factor: Count = Field(
        1, ge=1, le=15, description="Copies of such a topic. Use 3 wherever data matters."
    )
    on_lost_offsets: Literal["stop", "skip"] = Field(
        "stop",
        description="When messages are gone before they landed (retention, a topic made anew): stop that "
        "table until someone decides, or go on behind the gap and record it.",
    )
    messages_per_task_max: Count = Field(
        2_000, ge=1, description="What one Spark task reads of a partition. More means larger files."
    )

    def topic(self, signal: str) -> str:
        return str(getattr(self.topics, signal))


class WalConfig(Section):
    type: Literal["local", "s3", "kafka"] = Field(
        "local",
        description="Where requests are made durable: on this machine's disk, in an object store, or in "
        "Kafka, which a Collector can feed too but which has no tail to query before data has landed.",
    )
    local: LocalWalConfig = Field(default_factory=LocalWalConfig, description="For type local.")
    s3: S3WalConfig | None = Field(None, description="For type s3. Needs a store with conditional writes.")
    kafka: KafkaConfig | None = Field(None, description="For type kafka.")
    group_wait_seconds: Seconds | None = Field(
        None,
        ge=0,
        le=60,
        description="How long the first request of a segment waits for company, at most; a tenth of it while "
        "requests come further apart. Longer means fewer, larger segments (on S3 each costs a PUT) and later "
        "acks. Absent: 50ms for local, 100ms for s3.",
    )
    segment_bytes_max: Bytes = Field(
        8 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="Bytes of requests that close a segment before group_wait_seconds is over.",
    )
    lanes: Count = Field(
        1,
        ge=1,
        le=16,
        description="WAL streams per signal and worker. More keep a slow store busy, in smaller segments.",
    )
    write_timeout_seconds: Seconds = Field(
        8,
        gt=0,
        description="How long a segment may take to become durable before its requests are told to retry. "
        "Clients give up after 10 s by default.",
    )
    compression_level: Count = Field(
        1, ge=1, le=9, description="zstd level of segments. Higher means fewer bytes and more CPU."
    )

    @property
    def group_wait(self) -> float:
        """`group_wait_seconds`, or what suits the store."""
        if self.group_wait_seconds is not None:
            return self.group_wait_seconds
        return 0.05 if self.type == "local" else 0.1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "s3" and self.s3 is None:
            raise bad_value(
                "is s3, but there is no section wal.s3", "add `s3: {bucket: NAME}` below wal", "type"
            )
        if self.type == "kafka" and self.kafka is None:
            raise bad_value(
                "is kafka, but there is no section wal.kafka",
                "add `kafka: {brokers: [HOST:PORT]}` below wal",
                "type",
            )
        return self
