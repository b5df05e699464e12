"""Configuration of the write-ahead log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.connection import S3Connection
from frazil.config.values import KIB, MIB, Bytes, Count, Seconds, Section, bad_value, require_section


class LocalWalConfig(Section):
    path: Path | None = Field(
        None, description="Directory of segments, on a disk that honours fsync. Absent: wal below data_dir."
    )
    free_bytes_min: Bytes = Field(
        512 * MIB,
        ge=0,
        description="With less free disk space than this, the receiver rejects requests with 503.",
    )


class S3WalConfig(S3Connection):
    bucket: str = Field(min_length=1, description="Bucket. It must exist.", examples=["telemetry"])
    prefix: str = Field("wal", description="Prefix of all object names.")
    request_timeout_seconds: Seconds = Field(
        3, gt=0, description="Timeout of one request to the object store. The request is then retried."
    )


class KafkaTopics(Section):
    logs: str = Field("otlp_logs", min_length=1, description="Topic for logs.")
    spans: str = Field("otlp_spans", min_length=1, description="Topic for spans.")
    metrics: str = Field("otlp_metrics", min_length=1, description="Topic for metrics.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.logs, self.spans, self.metrics}) < 3:
            raise bad_value(
                "is also the topic of another signal", "use a different topic for each signal", "logs"
            )
        return self


class KafkaSasl(Section):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism."
    )
    username: str = Field(min_length=1, description="User name.", examples=["frazil"])
    password: SecretStr = Field(
        description="Password. Prefer the variable FRAZIL_WAL__KAFKA__SASL__PASSWORD.", examples=["secret"]
    )


class KafkaTls(Section):
    ca_file: Path | None = Field(
        None, description="CA certificates (PEM) for the brokers' certificates. Absent: the system's."
    )
    cert_file: Path | None = Field(None, description="Client certificate (PEM), for mTLS.")
    key_file: Path | None = Field(
        None, description="Private key of cert_file (PEM, PKCS#8, without a password)."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise bad_value("and key_file must be set together", "set both, or neither", "cert_file")
        return self


class KafkaTenant(Section):
    source: Literal["header", "key", "fixed"] = Field(
        "header",
        description="Source of a message's tenant: a header, the message key, or always tenants.default "
        "(fixed). A message without a valid tenant belongs to tenants.default.",
    )
    header: str = Field("frazil-tenant", min_length=1, description="Name of the header, for source header.")


class KafkaConfig(Section):
    brokers: tuple[str, ...] = Field(
        min_length=1,
        description="host:port of one or more brokers.",
        examples=[["kafka-1:9092", "kafka-2:9092"]],
    )
    topics: KafkaTopics = Field(KafkaTopics(), description="Topic of each signal.")
    encoding: Literal["otlp_proto", "otlp_json"] = Field(
        "otlp_proto", description="Encoding of messages, named as in the Collector's Kafka exporter."
    )
    tenant: KafkaTenant = Field(KafkaTenant(), description="Tenant of each message.")
    sasl: KafkaSasl | None = Field(None, description="SASL authentication. Absent: none.")
    tls: KafkaTls | None = Field(
        None, description="TLS to the brokers. {} uses the defaults. Absent: plain text."
    )
    message_bytes_max: Bytes = Field(
        900_000,
        ge=1 * KIB,
        description="Maximum message size; larger requests are split. Must be below the brokers' "
        "message.max.bytes (1 MB by default).",
    )
    compression: Literal["none", "gzip", "lz4", "zstd"] = Field(
        "zstd", description="Compression of message batches. Costs CPU, saves network and disk."
    )
    partitions: Count = Field(4, ge=1, le=10_000, description="Partitions of topics that frazil creates.")
    replication_factor: Count = Field(
        1, ge=1, le=15, description="Replicas of topics that frazil creates. Use 3 in production."
    )
    on_lost_offsets: Literal["stop", "skip"] = Field(
        "stop",
        description="Action if messages were deleted before they landed (by retention, or because the topic "
        "was recreated). stop: landing of the table stops until an operator acts. skip: landing continues "
        "after the gap and records it.",
    )
    messages_per_task_max: Count = Field(
        2_000,
        ge=1,
        description="Maximum number of messages that one Spark task reads. More makes larger files.",
    )

    def topic(self, signal: str) -> str:
        return str(getattr(self.topics, signal))


class WalConfig(Section):
    type: Literal["local", "s3", "kafka"] = Field(
        "local",
        description="Storage of the WAL: local disk, an S3 object store, or Kafka. A Collector can write to "
        "Kafka directly, but data in Kafka cannot be queried before it has landed.",
    )
    local: LocalWalConfig = Field(LocalWalConfig(), description="For type local.")
    s3: S3WalConfig | None = Field(None, description="For type s3. The store needs conditional writes.")
    kafka: KafkaConfig | None = Field(None, description="For type kafka.")
    group_wait_seconds: Seconds | None = Field(
        None,
        ge=0,
        le=60,
        description="Maximum time that a segment stays open for more requests. If requests arrive less "
        "often, a tenth of it is used. A longer wait makes fewer and larger segments (each costs a PUT on "
        "S3) and slower acknowledgements. Absent: 50ms for local, 100ms for s3.",
    )
    segment_bytes_max: Bytes = Field(
        8 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="Segment size at which a segment is written before group_wait_seconds is over.",
    )
    lanes: Count = Field(
        1,
        ge=1,
        le=16,
        description="WAL streams per signal and worker. More streams help with a slow store, but make "
        "smaller segments.",
    )
    write_timeout_seconds: Seconds = Field(
        8,
        gt=0,
        description="Maximum time for a segment to become durable before its requests get a retryable error. "
        "OTLP clients time out after 10 s by default.",
    )
    compression_level: Count = Field(
        1, ge=1, le=9, description="zstd level of segments. A higher level saves bytes and costs CPU."
    )

    @property
    def group_wait(self) -> float:
        """`group_wait_seconds`, or the default for the store."""
        if self.group_wait_seconds is not None:
            return self.group_wait_seconds
        return 0.05 if self.type == "local" else 0.1

    @model_validator(mode="after")
    def _check(self) -> Self:
        hints = {
            "s3": "add `s3: {bucket: NAME}` below wal",
            "kafka": "add `kafka: {brokers: [HOST:PORT]}` below wal",
        }
        require_section(self, self.type, "wal", hints)
        return self
