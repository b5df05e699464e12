"""Connection settings for the brokers: `wal.kafka` as librdkafka settings and as Java client settings."""

from __future__ import annotations

from pathlib import Path

from frazil.config.wal import KafkaConfig
from frazil.errors import ConfigError

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_ESCAPED_IN_JAAS = {'"': '\\"', "\\": "\\\\"}
_QUIET = 2
"""librdkafka logs to standard error, bypassing frazil's log; important events arrive as errors too."""

_RECONNECT_MS_MAX = 1000
"""With the default, a client may need ten seconds to reconnect to a broker."""

Settings = dict[str, str | int | float | bool]


def client_settings(config: KafkaConfig) -> Settings:
    """Returns the librdkafka settings that all clients of these brokers share."""
    settings: Settings = {
        "bootstrap.servers": ",".join(config.brokers),
        "security.protocol": _protocol(config),
        "client.id": "frazil",
        "log_level": _QUIET,
        "reconnect.backoff.max.ms": _RECONNECT_MS_MAX,
        "socket.keepalive.enable": True,
    }
    if config.sasl is not None:
        settings["sasl.mechanism"] = config.sasl.mechanism
        settings["sasl.username"] = config.sasl.username
        settings["sasl.password"] = config.sasl.password.get_secret_value()
    if config.tls is not None:
        files = {
            "ssl.ca.location": config.tls.ca_file,
            "ssl.certificate.location": config.tls.cert_file,
            "ssl.key.location": config.tls.key_file,
        }
        settings |= {key: str(path) for key, path in files.items() if path is not None}
    return settings


def spark_settings(config: KafkaConfig) -> dict[str, str]:
    """Returns the settings for Spark's Kafka source, which uses the Java client.

    Certificates are passed as text, because executors may run on machines without the files.
    """
    settings = {
        "bootstrap.servers": ",".join(config.brokers),
        "security.protocol": _protocol(config),
    }
    if config.sasl is not None:
        username, password = config.sasl.username, config.sasl.password.get_secret_value()
        settings["sasl.mechanism"] = config.sasl.mechanism
        settings["sasl.jaas.config"] = (
            f"{_LOGIN_MODULES[config.sasl.mechanism]} required "
            f"username={jaas_text(username)} password={jaas_text(password)};"
        )
    if config.tls is not None and config.tls.ca_file is not None:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = _read("ca_file", config.tls.ca_file)
    if config.tls is not None and config.tls.cert_file is not None and config.tls.key_file is not None:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = _read("cert_file", config.tls.cert_file)
        settings["ssl.keystore.key"] = _read("key_file", config.tls.key_file)
    return {f"kafka.{key}": value for key, value in settings.items()}


def jaas_text(text: str) -> str:
    """Quotes a string for a JAAS line, as Java's StreamTokenizer parses it. Escapes control characters."""
    return '"' + "".join(_ESCAPED_IN_JAAS.get(c, c if c >= " " else f"\\{ord(c):03o}") for c in text) + '"'


def _protocol(config: KafkaConfig) -> str:
    transport = "PLAINTEXT" if config.tls is None else "SSL"
    return transport if config.sasl is None else f"SASL_{transport}"


def _read(key: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"wal.kafka.tls.{key}: {path} cannot be read: {error}") from None
