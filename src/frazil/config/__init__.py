"""Typed, frozen configuration. The only package that reads the configuration file and the environment."""

from frazil.config.example import example_yaml
from frazil.config.lake import (
    CatalogConfig,
    LakeConfig,
    LandConfig,
    PipelineConfig,
    RestCatalog,
    SparkConfig,
)
from frazil.config.load import load_config
from frazil.config.maintain import (
    CompactConfig,
    ExpireConfig,
    MaintainConfig,
    OrphansConfig,
    RetentionRule,
    TierConfig,
)
from frazil.config.model import (
    ApiKey,
    AuthConfig,
    Config,
    DemoConfig,
    GrpcConfig,
    HttpConfig,
    LimitsConfig,
    LogConfig,
    PromotedColumn,
    RateLimit,
    RateLimitsConfig,
    ReceiveConfig,
    Role,
    TablesConfig,
    TenantsConfig,
)
from frazil.config.s3 import S3Connection
from frazil.config.serve import QueryConfig, ServeConfig
from frazil.config.status import StatusConfig
from frazil.config.telemetry import TelemetryConfig
from frazil.config.tls import TlsConfig
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
    "CatalogConfig",
    "CompactConfig",
    "Config",
    "DemoConfig",
    "ExpireConfig",
    "GrpcConfig",
    "HttpConfig",
    "KafkaConfig",
    "LakeConfig",
    "LandConfig",
    "LimitsConfig",
    "LocalWalConfig",
    "LogConfig",
    "MaintainConfig",
    "OrphansConfig",
    "PipelineConfig",
    "PromotedColumn",
    "QueryConfig",
    "RateLimit",
    "RateLimitsConfig",
    "ReceiveConfig",
    "RestCatalog",
    "RetentionRule",
    "Role",
    "S3Connection",
    "S3WalConfig",
    "ServeConfig",
    "SparkConfig",
    "StatusConfig",
    "TablesConfig",
    "TelemetryConfig",
    "TenantsConfig",
    "TierConfig",
    "TlsConfig",
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
