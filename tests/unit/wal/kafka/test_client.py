"""The configuration of brokers in librdkafka's words and in Java's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config.wal import KafkaConfig
from frazil.errors import ConfigError
from frazil.wal.kafka.client import client_settings, jaas_text, spark_settings

SASL = {"mechanism": "SCRAM-SHA-512", "username": "shop", "password": "secret"}


def config(**settings: Any) -> KafkaConfig:
    return KafkaConfig.model_validate({"brokers": ["a:1", "b:2"]} | settings)


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": {}}, "SSL"),
        ({"sasl": SASL}, "SASL_PLAINTEXT"),
        ({"sasl": SASL, "tls": {}}, "SASL_SSL"),
    ],
)
def test_both_clients_speak_the_same_protocol_to_the_same_brokers(
    settings: dict[str, Any], protocol: str
) -> None:
    native, java = client_settings(config(**settings)), spark_settings(config(**settings))
    assert native["security.protocol"] == java["kafka.security.protocol"] == protocol
    assert native["bootstrap.servers"] == java["kafka.bootstrap.servers"] == "a:1,b:2"


def test_without_a_password_none_is_named() -> None:
    assert not [key for key in client_settings(config()) if key.startswith(("sasl", "ssl"))]
    assert set(spark_settings(config())) == {"kafka.bootstrap.servers", "kafka.security.protocol"}


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", "plain.Plain"), ("SCRAM-SHA-256", "scram.Scram")]
)
def test_each_mechanism_has_its_login_module(mechanism: str, module: str) -> None:
    chosen = config(sasl=SASL | {"mechanism": mechanism})
    assert client_settings(chosen)["sasl.mechanism"] == mechanism
    java = spark_settings(chosen)
    assert java["kafka.sasl.mechanism"] == mechanism
    assert java["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module}LoginModule required username="shop" password="secret";'
    )


def test_librdkafka_gets_files_and_java_gets_what_is_in_them(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ca_file", "cert_file", "key_file")}
    for name, path in files.items():
        path.write_text(f"PEM of {name}\n")
    chosen = config(tls={name: str(path) for name, path in files.items()})
    native = client_settings(chosen)
    assert native["ssl.ca.location"] == str(files["ca_file"])
    assert native["ssl.certificate.location"] == str(files["cert_file"])
    assert native["ssl.key.location"] == str(files["key_file"])
    java = spark_settings(chosen)
    assert java["kafka.ssl.truststore.type"] == java["kafka.ssl.keystore.type"] == "PEM"
    assert java["kafka.ssl.truststore.certificates"] == "PEM of ca_file\n"
    assert java["kafka.ssl.keystore.certificate.chain"] == "PEM of cert_file\n"
    assert java["kafka.ssl.keystore.key"] == "PEM of key_file\n"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"wal\.kafka\.tls\.ca_file: .*absent\.pem cannot be read"):
        spark_settings(config(tls={"ca_file": str(tmp_path / "absent.pem")}))


def _read_by_stream_tokenizer(text: str) -> str:
    """A quoted string as java.io.StreamTokenizer reads it; an open or broken one fails."""
    assert text[0] == '"'
    value, at = "", 1
    while text[at] != '"':
        assert text[at] not in "\r\n", "the string ends with the line"
        if text[at] != "\\":
            value, at = value + text[at], at + 1
            continue
        digits_max = 3 if text[at + 1] in "0123" else 2
        digits = ""
        while len(digits) < digits_max and text[at + 1 + len(digits)] in "01234567":
            digits += text[at + 1 + len(digits)]
        if digits:
            value, at = value + chr(int(digits, 8)), at + 1 + len(digits)
        else:
            named = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\x0b"}
            value, at = value + named.get(text[at + 1], text[at + 1]), at + 2
    assert at == len(text) - 1, "something follows the string"
    return value


@given(st.text(max_size=40) | st.text("\\\"';= \n\r\t017abfnrtv{}#", max_size=20))
def test_any_password_is_read_back_from_its_jaas_line(password: str) -> None:
    assert _read_by_stream_tokenizer(jaas_text(password)) == password
