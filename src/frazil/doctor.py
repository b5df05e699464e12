"""The checks of `frazil doctor`, each with a fix. They leave nothing behind but empty WAL folders."""

from __future__ import annotations

import os
import secrets
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from urllib3.exceptions import HTTPError

from frazil import health
from frazil.config import Config, KafkaConfig, TlsConfig, format_bytes, split_listen
from frazil.config.values import local_url
from frazil.dependencies import Check as Ask
from frazil.dependencies import Checked
from frazil.errors import ConfigError, FrazilError, SetupFault, StoreUnavailable, StoreUnsafe
from frazil.http_client import HttpClient
from frazil.paths import (
    check_writable,
    file_system_type,
    is_open_to_others,
    private_folders,
    segment_write_seconds,
)
from frazil.ports import PortTaken, check_free
from frazil.preflight import check_sqlite
from frazil.storage.durable import nearest_existing
from frazil.tables import SIGNALS
from frazil.tls import faults, listeners

Status = Literal["ok", "warn", "fail"]

PYTHON_MIN = (3, 11)
PROBE_WRITERS = 32
OPEN_FILES_MIN = 4096
CERTIFICATE_DAYS_MIN = 14
CLOCK_SKEW_SECONDS_MAX = 2.0
ANSWER_SECONDS_MAX = 15.0


@dataclass(frozen=True)
class Check:
    """The result of one check. A result that is not ok has a `fix`."""

    name: str
    status: Status
    found: str
    fix: str | None = None


def run_checks(config: Config) -> list[Check]:
    """Run all checks, from the machine to remote services. Never raises."""
    checks: list[Check] = []
    for name, check in _checks(config):
        try:
            checks.extend(check(config))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            checks.append(
                Check(name, "fail", f"the check itself failed: {text}", "report this as a bug in frazil")
            )
    return checks


def _checks(config: Config) -> Iterator[tuple[str, Callable[[Config], Iterator[Check]]]]:
    yield "python", check_python
    yield "java", check_java
    yield "jars", check_jars
    yield "ports", check_ports
    yield "data folder", check_data_folder
    yield "open files", check_open_files
    yield "clock", check_clock
    yield "tls", check_tls
    if any(rule.where is not None for rule in config.maintain.retention.rules):
        yield "retention", check_retention
    yield "wal store", check_wal_store
    yield "catalog", check_catalog
    yield "warehouse", check_warehouse


def check_python(config: Config, version: tuple[int, ...] = sys.version_info[:3]) -> Iterator[Check]:
    found = "Python " + ".".join(map(str, version))
    if version < PYTHON_MIN:
        yield Check("python", "fail", found, "install Python 3.11 or newer and run `make setup` again")
    else:
        yield Check("python", "ok", found)


def check_java(config: Config) -> Iterator[Check]:
    """Check that Java 17 or 21 runs, which Spark needs for landing. Receiving needs no Java."""
    from frazil.pipeline.java import find_java

    try:
        java = find_java()
        yield Check("java", "ok", f"Spark will use {java} at {java.home}")
    except ConfigError as error:
        yield Check("java", "warn", str(error), "install Java 17 or 21: landing needs it, receiving does not")


def check_jars(config: Config) -> Iterator[Check]:
    """Spark's jars are fetched once. A machine without a network needs them beforehand."""
    from frazil.pipeline.jars import missing, packages

    needed = packages(config)
    if absent := missing(needed):
        found = f"{len(absent)} of {len(needed)} jars will be fetched from Maven when Spark first starts"
        yield Check(
            "jars", "warn", found, "run `python -m frazil.pipeline.jars` while the network is available"
        )
    else:
        yield Check("jars", "ok", f"all {len(needed)} jars for Spark are installed")


def check_ports(config: Config) -> Iterator[Check]:
    receive, serve = config.receive, config.serve
    yield _port("http port", "receive.http.listen", receive.http.listen, receive.http.listen, receive.tls)
    if receive.grpc.enabled:
        yield _port("grpc port", "receive.grpc.listen", receive.grpc.listen, receive.http.listen, receive.tls)
    pipeline = config.pipeline.listen
    yield _port("pipeline port", "pipeline.listen", pipeline, pipeline, None)
    yield _port("api port", "serve.listen", serve.listen, serve.listen, serve.tls)
    dashboard = config.dashboard
    if dashboard.enabled:
        yield _port("dashboard port", "dashboard.listen", dashboard.listen, dashboard.listen, dashboard.tls)


def _port(name: str, key: str, listen: str, health: str, tls: TlsConfig | None) -> Check:
    """Check that the port is free, or used by frazil. `health` is the address whose /healthz identifies
    frazil.
    """
    if split_listen(listen)[1] == 0:
        return Check(name, "ok", f"{listen}: a free port will be chosen")
    try:
        check_free(key, listen)
    except PortTaken as taken:
        if frazil_answers(health, tls):
            by = taken.owner or "a process that this user cannot see"
            return Check(
                name, "ok", f"{listen} is in use by {by}: frazil is running and responds to /healthz"
            )
        if tls is not None and tls.client_ca_file is not None:
            found = f"{taken.found}; it may be frazil, which requires a client certificate here"
            return Check(name, "warn", found, f"if it is not frazil: {taken.fix}")
        return Check(name, "fail", taken.found, taken.fix)
    except SetupFault as fault:
        return Check(name, "fail", fault.found, fault.fix)
    return Check(name, "ok", f"{listen} is free")


def frazil_answers(listen: str, tls: TlsConfig | None) -> bool:
    """Return whether frazil responds to /healthz at `listen`."""
    client = HttpClient(
        verify=False, connect_seconds=2
    )  # no secret is sent, so the certificate need not be verified
    try:
        _, body = client.get(f"{local_url(listen, tls=tls is not None)}/healthz", seconds_max=2)
        return health.parse(body) is not None
    except (OSError, ValueError, HTTPError):
        return False
    finally:
        client.close()


def check_retention(config: Config) -> Iterator[Check]:
    """Check retention rules before they are due: a rule that cannot be parsed keeps rows forever."""
    from frazil.pipeline.maintain.retain.check import check_rules

    problems = check_rules(config)
    for problem in problems:
        yield Check(
            "retention",
            "fail",
            problem,
            "correct the rule; `frazil query` accepts the same WHERE condition for a test",
        )
    if not problems:
        count = len(config.maintain.retention.rules)
        yield Check("retention", "ok", f"{count} rules are valid for the tables")


def check_data_folder(config: Config) -> Iterator[Check]:
    """Folders are writable, durable and have free space."""
    folders = [("data folder", "data_dir", config.data_dir)]
    if config.wal.type == "local" and config.wal_dir.resolve().parent != config.data_dir.resolve():
        folders.append(("wal folder", "wal.local.path", config.wal_dir))
    for name, key, folder in folders:
        written = _writable(name, key, folder)
        yield written
        if written.status == "fail":
            continue
        yield from _file_system(name, folder)
    yield _private(config)
    if config.wal.type == "local":
        yield _free_disk(config)


def _private(config: Config) -> Check:
    """API keys do not protect files that other users of this machine can read."""
    paths = [folder for _, folder in private_folders(config)]
    if config.lake.catalog.type == "sqlite":
        paths.append(config.catalog_file)
    if config.query.audit_file is not None:
        paths.append(config.query.audit_file)
    if config.client.api_key_file is not None:
        paths.append(config.client.api_key_file)
    if found := [str(path) for path in paths if is_open_to_others(path)]:
        names = ", ".join(found)
        fix = f"`chmod o-rwx {' '.join(found)}`; if another account must read them, give its group access"
        return Check("other users", "warn", f"every user of this machine can read {names}", fix)
    return Check("other users", "ok", "only the owner and the group of the folders can read the data")


def _writable(name: str, key: str, folder: Path) -> Check:
    try:
        check_writable(key, folder, may_be_full=False)
    except SetupFault as fault:
        return Check(name, "fail", fault.found, fault.fix)
    if not folder.exists():
        return Check(name, "ok", f"{folder} does not exist yet and can be created")
    return Check(name, "ok", f"{folder} is writable")


def _file_system(name: str, folder: Path) -> Iterator[Check]:
    name = f"{name}: file system"
    kind = file_system_type(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".frazil-doctor-", dir=nearest_existing(folder)) as scratch:
            seconds = segment_write_seconds(Path(scratch))
    except OSError as error:
        fix = "put data_dir (or wal.local.path) on a local disk with ext4, xfs or btrfs"
        yield Check(
            name,
            "fail",
            f"{kind or 'the file system'} does not support link and fsync: {error.strerror}",
            fix,
        )
        return
    found = f"{kind or 'unknown type'}; link and fsync work, one segment takes {seconds * 1000:.1f} ms"
    if kind in ("tmpfs", "ramfs"):
        fix = "put data_dir (or wal.local.path) on a disk, unless this is a trial"
        yield Check(name, "warn", f"{found}, but data is in memory: a reboot loses acknowledged data", fix)
    elif kind is not None and (kind.startswith("nfs") or kind in ("cifs", "smb3", "9p", "fuse.sshfs")):
        fix = "use a local disk, or wal.type s3 for shared storage"
        yield Check(
            name, "warn", f"{found}, but it is a network file system: only as durable as its server", fix
        )
    elif seconds > 0.1:
        fix = "use a faster disk for the WAL (wal.local.path): every ack waits for fsync"
        yield Check(name, "warn", found, fix)
    else:
        yield Check(name, "ok", found)


def _free_disk(config: Config) -> Check:
    free = shutil.disk_usage(nearest_existing(config.wal_dir)).free
    least = config.wal.local.free_bytes_min
    found = f"{free / 1e9:.1f} GB free for the WAL; the receiver refuses below {format_bytes(least)}"
    if free < least:
        return Check("free disk", "fail", found, "free disk space, or lower wal.local.free_bytes_min")
    if free < least + 2 * (1 << 30):
        return Check(
            "free disk",
            "warn",
            found,
            "free disk space soon: less than 2 GiB until the receiver refuses data",
        )
    return Check("free disk", "ok", found)


def check_open_files(config: Config) -> Iterator[Check]:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN:
        yield Check("open files", "ok", f"{soft} allowed")
        return
    fix = f"`ulimit -n {OPEN_FILES_MIN}` before starting frazil (hard limit: {hard})"
    yield Check("open files", "warn", f"only {soft} allowed; connections and segments need open files", fix)


def check_clock(config: Config) -> Iterator[Check]:
    """Stream ids and retention use this clock; a network file system uses its server's clock."""
    now = datetime.now(UTC)
    if now.year < 2025:
        yield Check("clock", "fail", f"the clock shows {now:%Y-%m-%d}", "set the clock (NTP)")
        return
    folder = nearest_existing(config.data_dir)
    try:
        with tempfile.NamedTemporaryFile(prefix=".frazil-doctor-", dir=folder) as file:
            before = time.time()
            os.utime(file.name)
            skew = os.stat(file.name).st_mtime - before
    except OSError:
        yield Check("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC (the file system's time could not be read)")
        return
    if abs(skew) > CLOCK_SKEW_SECONDS_MAX:
        fix = "synchronise the clocks of both machines (NTP)"
        yield Check(
            "clock", "warn", f"the clocks of this machine and of the file system differ by {skew:+.1f} s", fix
        )
    else:
        yield Check("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC, the same as the file system")


def check_tls(config: Config) -> Iterator[Check]:
    for key, tls in listeners(config):
        found = [
            Check(key, "fail", fault.found, f"{key}.{fault.field}: {fault.fix}") for fault in faults(tls)
        ]
        if not found:
            found.append(_expiry(key, tls.cert_file))
            if tls.client_ca_file is not None:
                found.append(_expiry(f"{key} clients", tls.client_ca_file))
        yield from found


def _expiry(name: str, path: Path) -> Check:
    # The only function of the standard library that reads a certificate's dates from a file is private.
    facts = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    begins = datetime.fromtimestamp(ssl.cert_time_to_seconds(facts["notBefore"]), UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(facts["notAfter"]), UTC)
    now = datetime.now(UTC)
    renew = "renew it; running roles load the new files automatically"
    if ends <= now:
        return Check(name, "fail", f"{path} expired on {ends:%Y-%m-%d}", renew)
    if begins > now:
        return Check(
            name, "fail", f"{path} is valid only from {begins:%Y-%m-%d}", "check the clock, or renew it"
        )
    days = (ends - now).days
    if days < CERTIFICATE_DAYS_MIN:
        return Check(name, "warn", f"{path} expires in {days} days, on {ends:%Y-%m-%d}", renew)
    return Check(name, "ok", f"{path} is valid until {ends:%Y-%m-%d}")


def check_wal_store(config: Config) -> Iterator[Check]:
    """Check that exactly one of many concurrent writers of one name succeeds."""
    if config.wal.kafka is not None and config.wal.type == "kafka":
        yield _check_kafka(config.wal.kafka)
        return
    from frazil.wal import open_store
    from frazil.wal.store import probe_store

    where = str(config.wal_dir)
    if config.wal.s3 is not None and config.wal.type == "s3":
        where = f"s3://{config.wal.s3.bucket}/{config.wal.s3.prefix}"
    try:
        result = probe_store(open_store(config), writers=PROBE_WRITERS)
    except StoreUnsafe as error:
        fix = "use another store: with this one, acknowledged data could be overwritten"
        yield Check("wal store", "fail", f"{where}: conditional writes do not work: {error}", fix)
    except StoreUnavailable as error:
        fix = (
            "check the address, the bucket, the credentials and the network"
            if config.wal.type == "s3"
            else "check the folder's permissions and the free disk space"
        )
        yield Check("wal store", "fail", f"{where} cannot be written to: {error}", fix)
    except FrazilError as error:
        yield Check("wal store", "fail", f"{where}: {error}", "correct section `wal` of the configuration")
    else:
        found = (
            f"{where}: conditional writes worked in {result.rounds} rounds of {result.writers} "
            f"concurrent writers ({result.seconds:.1f} s)"
        )
        yield Check("wal store", "ok", found)


def _check_kafka(config: KafkaConfig) -> Check:
    from frazil.wal.kafka.topics import Topics

    topics = Topics(config)
    try:
        found = {config.topic(signal): topics.state(signal) for signal in SIGNALS}
    except FrazilError as error:
        return Check("kafka", "fail", str(error), "check wal.kafka: brokers, sasl, tls; and the network")
    missing = [name for name, state in found.items() if state is None]
    if missing:
        return Check("kafka", "ok", f"the brokers respond; {', '.join(missing)} will be created at the start")
    return Check("kafka", "ok", f"the brokers respond; {', '.join(found)} exist")


def check_catalog(config: Config) -> Iterator[Check]:
    """Check that the catalog responds. Creates nothing."""
    catalog = config.lake.catalog
    if catalog.type == "sqlite":
        yield _check_sqlite(config)
        return
    from frazil.lake.catalog import CatalogProbe

    probe = CatalogProbe(config)
    found: list[bool] = []

    def ask() -> str:
        found.append(probe.check())
        return ""

    if problem := _problem(ask):
        fix = {
            "postgres": "start the server, or correct lake.catalog.postgres.uri: host, port, database, user "
            "and password",
            "rest": "start the server, or correct lake.catalog.rest: uri, warehouse, credential or token",
        }[catalog.type]
        yield Check("catalog", "fail", f"{catalog.type}: {problem}", fix)
        return
    probe.close()
    tables = (
        f"the namespace {config.lake.namespace} {'exists' if found[0] else 'will be created at the start'}"
    )
    yield Check("catalog", "ok", f"{catalog.type} responds; {tables}")


def _check_sqlite(config: Config) -> Check:
    path = config.catalog_file
    if not path.exists():
        return Check("catalog", "ok", f"{path} does not exist yet and will be created at the start")
    try:
        check_sqlite(path)
    except SetupFault as fault:
        return Check("catalog", "fail", fault.found, fault.fix)
    return Check("catalog", "ok", f"{path} is a writable SQLite database")


def check_warehouse(config: Config) -> Iterator[Check]:
    """Check that objects of the warehouse can be listed, written, read and deleted. Leaves none."""
    where = config.warehouse
    if not where.startswith("s3://"):
        yield _writable("warehouse", "lake.warehouse", Path(where))
        return
    if config.lake.catalog.type == "rest" and config.lake.s3.access_key_id is None:
        yield Check(
            "warehouse", "ok", f"{where}: not checked, because its credentials come from the REST catalog"
        )
        return
    if problem := _problem(lambda: _use_warehouse(config)):
        if "bucket does not exist" in problem:
            fix = "create the bucket, or correct lake.warehouse"
        else:
            fix = (
                "check lake.warehouse, lake.s3 (endpoint, region, credentials) and the network; frazil needs "
                "the rights to list, read, write and delete objects"
            )
        yield Check("warehouse", "fail", problem if where in problem else f"{where}: {problem}", fix)
    else:
        yield Check("warehouse", "ok", f"{where}: list, write, read and delete work")


def _use_warehouse(config: Config) -> str:
    from frazil.lake.files import LakeFileIO, file_properties

    files = LakeFileIO(file_properties(config))
    location, data = f"{config.warehouse}/doctor/{secrets.token_hex(16)}", secrets.token_bytes(16)
    files.list(f"{config.warehouse}/doctor")
    files.write(location, data)
    try:
        return "" if files.read(location) == data else "an object was read back with other content"
    finally:
        files.delete(location)


def _problem(ask: Ask) -> str:
    return Checked(ask, wait_seconds=ANSWER_SECONDS_MAX).problem()
