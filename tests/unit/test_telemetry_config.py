from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.config import Config, load_config
from frazil.errors import ConfigError
from frazil.keys import new_key


def load(folder: Path, **settings: Any) -> Config:
    path = folder / "frazil.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path, environ={})


def keys(*roles: str) -> tuple[str, dict[str, Any]]:
    key, hash = new_key("ops")
    return key, {"keys": [{"name": "own", "tenant": "ops", "hash": hash, "roles": list(roles)}]}


def test_telemetry_is_off_by_default(tmp_path: Path) -> None:
    assert not load(tmp_path).telemetry.enabled


def test_sending_to_itself_needs_a_key_if_keys_are_configured(tmp_path: Path) -> None:
    _, auth = keys("write")
    with pytest.raises(ConfigError, match=r"telemetry\.api_key: is not set, but the receiver"):
        load(tmp_path, auth=auth, telemetry={"enabled": True})


@pytest.mark.parametrize("roles", [("read",), ("admin", "read")])
def test_a_key_without_the_role_write_is_rejected_and_not_shown(
    tmp_path: Path, roles: tuple[str, ...]
) -> None:
    key, auth = keys(*roles)
    with pytest.raises(ConfigError, match=r"telemetry\.api_key: is not a key in auth\.keys") as caught:
        load(tmp_path, auth=auth, telemetry={"enabled": True, "api_key": key})
    assert key not in str(caught.value)


def test_a_key_with_the_role_write_is_accepted_and_not_shown(tmp_path: Path) -> None:
    key, auth = keys("write")
    given = {"enabled": True, "api_key": key, "headers": {"x-token": "hunter2"}}
    config = load(tmp_path, auth=auth, telemetry=given)
    assert config.telemetry.api_key is not None
    assert config.telemetry.api_key.get_secret_value() == key
    assert config.telemetry.headers["x-token"].get_secret_value() == "hunter2"
    assert key not in repr(config)
    assert "hunter2" not in repr(config)


def test_another_endpoint_needs_no_key_of_this_frazil(tmp_path: Path) -> None:
    _, auth = keys("write")
    load(tmp_path, auth=auth, telemetry={"enabled": True, "endpoint": "https://otel.example.com:4318"})


@pytest.mark.parametrize(
    "endpoint", ["otel.example.com:4318", "https://otel.example.com/v1/traces", "http://"]
)
def test_an_endpoint_is_a_base_url(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.endpoint"):
        load(tmp_path, telemetry={"endpoint": endpoint})


def test_grpc_to_itself_needs_the_grpc_listener(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.protocol: is grpc, but receive\.grpc\.enabled"):
        load(
            tmp_path,
            receive={"grpc": {"enabled": False}},
            telemetry={"enabled": True, "protocol": "grpc"},
        )


def test_an_invalid_header_is_named_without_its_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.headers.*'X Token'") as caught:
        load(tmp_path, telemetry={"headers": {"X Token": "hunter2"}})
    assert "hunter2" not in str(caught.value)


def test_a_header_that_is_not_text_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.headers") as caught:
        load(tmp_path, telemetry={"headers": {"x-token": 424242}})
    assert "424242" not in str(caught.value)
