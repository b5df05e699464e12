"""Typed, frozen configuration. The only package that reads the configuration file and the environment."""

from frazil.config.connection import TlsConfig
from frazil.config.derive import ViewConfig
from frazil.config.example import example_yaml
from frazil.config.lake import RestCatalog, SparkConfig
from frazil.config.load import load_config
from frazil.config.maintain import (
    CompactConfig,
    ExpireConfig,
    MaintainConfig,
    RetentionRule,
    TierConfig,
)
from frazil.config.model import ClientConfig, Config, DemoConfig, LogConfig, PromotedColumn
from frazil.config.receive import (
    ApiKey,
    AuthConfig,
    HttpConfig,
    LimitsConfig,
    RateLimit,
    RateLimitsConfig,
    ReceiveConfig,
    Role,
)
from frazil.config.serve import QueryConfig
from frazil.config.status import StatusConfig
from frazil.config.telemetry import TelemetryConfig
from frazil.config.values import (
    format_bytes,
    is_loopback,
    parse_bytes,
    parse_seconds,
    split_listen,
    tenant_id,
)
from frazil.config.wal import KafkaConfig, LocalWalConfig, S3WalConfig, WalConfig

__all__ = [
    "ApiKey",
    "AuthConfig",
    "ClientConfig",
    "CompactConfig",
    "Config",
    "DemoConfig",
    "ExpireConfig",
    "HttpConfig",
    "KafkaConfig",
    "LimitsConfig",
    "LocalWalConfig",
    "LogConfig",
    "MaintainConfig",
    "PromotedColumn",
    "QueryConfig",
    "RateLimit",
    "RateLimitsConfig",
    "ReceiveConfig",
    "RestCatalog",
    "RetentionRule",
    "Role",
    "S3WalConfig",
    "SparkConfig",
    "StatusConfig",
    "TelemetryConfig",
    "TierConfig",
    "TlsConfig",
    "ViewConfig",
    "WalConfig",
    "example_yaml",
    "format_bytes",
    "is_loopback",
    "load_config",
    "parse_bytes",
    "parse_seconds",
    "split_listen",
    "tenant_id",
]
