"""The URL, the key and the CA of the client: an option first, then the environment, then the file."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import frazil
from frazil import doctor
from frazil.client.status import StatusOptions, run
from frazil.client.transport import Unreachable
from frazil.config import Config, example_yaml, load_config
from frazil.errors import ConfigError, FrazilError
from tests.components.process import free_port
from tests.support.client_api import Api


def configured(text: str) -> Path:
    path = Path("frazil.yaml")
    path.write_text(text)
    return path


def keys_sent(api: Api) -> list[str]:
    return [seen.headers.get("authorization", "").removeprefix("Bearer ") for seen in api.seen]


def frazil_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frazil", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def test_connect_takes_the_url_and_the_key_of_the_file(api: Api) -> None:
    path = configured(f"client: {{url: '{api.url}', api_key: fz_file}}\n")
    frazil.connect().sql("SELECT 1")
    frazil.connect(config=path).sql("SELECT 1")
    frazil.connect(config=load_config(path)).sql("SELECT 1")
    assert keys_sent(api) == ["fz_file"] * 3


def test_the_key_of_the_file_can_be_in_a_file_of_its_own(api: Api, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("fz_other_file\n")
    configured(f"client: {{url: '{api.url}', api_key: '@{tmp_path / 'key'}'}}\n")
    frazil.connect().sql("SELECT 1")
    assert keys_sent(api) == ["fz_other_file"]


def test_an_argument_comes_before_the_environment_and_that_before_the_file(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    configured(f"client: {{url: '{nowhere}', api_key: fz_file}}\n")
    frazil.connect(api.url).sql("SELECT 1")
    monkeypatch.setenv("FRAZIL_CLIENT__URL", api.url)
    monkeypatch.setenv("FRAZIL_CLIENT__API_KEY", "fz_section")
    frazil.connect().sql("SELECT 1")
    monkeypatch.setenv("FRAZIL_API_KEY", "fz_environment")
    frazil.connect().sql("SELECT 1")
    frazil.connect(api_key="fz_argument").sql("SELECT 1")
    assert keys_sent(api) == ["fz_file", "fz_section", "fz_environment", "fz_argument"]
    monkeypatch.setenv("FRAZIL_CLIENT__URL", nowhere)
    frazil.connect(api.url).sql("SELECT 1")
    with pytest.raises(Unreachable, match=nowhere):
        frazil.connect().sql("SELECT 1")


def test_the_ca_of_the_file_is_used_unless_one_is_given(api: Api, tmp_path: Path) -> None:
    configured(f"client: {{url: '{api.url}', ca_file: {tmp_path / 'none.pem'}}}\n")
    with pytest.raises(ConfigError, match=r"CA file .*none\.pem does not exist"):
        frazil.connect()
    with pytest.raises(ConfigError, match=r"CA file .*other\.pem does not exist"):
        frazil.connect(ca_file=tmp_path / "other.pem")


def test_a_tenant_is_read_from_the_files_whatever_is_configured(tmp_path: Path) -> None:
    configured(f"client: {{url: 'http://127.0.0.1:{free_port()}', api_key: fz_file}}\n")
    with frazil.connect(tenant="shop") as db:
        assert db.sql("SELECT 1").rows() == [(1,)]


def test_status_takes_the_url_and_the_key_of_the_file(api: Api) -> None:
    path = configured(f"client: {{url: '{api.url}', api_key: fz_file}}\n")
    options = StatusOptions(config=path, json_output=True)
    for chosen in (options, dataclasses.replace(options, api_key="fz_argument")):
        with pytest.raises(FrazilError, match=f"{api.url} returned HTTP status 404"):
            run(chosen, Console())  # no roles are polled: this API, which has no status, was chosen
    assert keys_sent(api) == ["fz_file", "fz_argument"]


def test_the_commands_take_the_url_and_the_key_of_the_file(api: Api) -> None:
    configured(f"client: {{url: '{api.url}', api_key: fz_file}}\n")
    assert frazil_command("query", "SELECT 1").returncode == 0
    assert frazil_command("query", "SELECT 1", FRAZIL_API_KEY="fz_environment").returncode == 0
    assert frazil_command("query", "--api-key", "fz_option", "SELECT 1").returncode == 0
    assert keys_sent(api) == ["fz_file", "fz_environment", "fz_option"]


def test_demo_takes_its_endpoint_and_the_key_of_the_file(api: Api) -> None:
    configured(f"client: {{endpoint: '{api.url}', api_key: fz_file}}\n")
    short = ("demo", "--protocol", "http", "--duration", "1s", "--rate", "1")
    frazil_command(*short)
    sent = [seen for seen in api.seen if seen.path.startswith("/v1/")]
    assert sent
    assert {seen.headers["authorization"] for seen in sent} == {"Bearer fz_file"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "client: {urll: 'http://a:1'}",
            "frazil.yaml:1:10: client.urll: unknown key (given 'http://a:1')\n    did you mean `url`?",
        ),
        (
            "client: {api_kee: fz_secret}",
            "frazil.yaml:1:10: client.api_kee: unknown key (given 9 characters, not shown)\n"
            "    did you mean `api_key`?",
        ),
        (
            "client: {url: 'frazil.example:4380'}",
            "frazil.yaml:1:15: client.url: has an invalid format (given 'frazil.example:4380')\n"
            "    for example `url: https://frazil.example.com`",
        ),
        (
            "client:\n  api_key: @/etc/key",
            "frazil.yaml:2:12: not valid YAML: found character '@' that cannot start any token "
            "(while scanning for the next token)\n    put the value in quotes",
        ),
    ],
)
def test_a_typo_is_reported_with_its_place_and_no_secret(text: str, message: str) -> None:
    configured(text)
    with pytest.raises(ConfigError) as error:
        load_config()
    assert str(error.value) == message


def test_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    config = load_config(configured("client: {api_key: fz_secret}\n"))
    assert "fz_secret" not in repr(config) + str(config) + config.model_dump_json()
    (tmp_path / "example.yaml").write_text(example_yaml().replace("#api_key: ", "api_key: "))
    with pytest.raises(ConfigError) as error:
        frazil.connect("http://127.0.0.1:1", config=tmp_path / "example.yaml")
    assert "cannot read the API key" in str(error.value)


def test_doctor_warns_about_a_key_that_every_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("fz_secret")
    monkeypatch.setattr(doctor, "is_open_to_others", lambda path: path == key and path.stat().st_mode & 0o007)
    config = Config.model_validate({"data_dir": tmp_path / "data", "client": {"api_key": f"@{key}"}})
    for mode, status in ((0o644, "warn"), (0o640, "ok")):
        key.chmod(mode)
        [check] = [check for check in doctor.check_data_folder(config) if check.name == "other users"]
        assert check.status == status
        assert (str(key) in check.found) == (status == "warn")
