"""What `frazil doctor` looks at, and what it says to do about it. Leaves only empty folders of the WAL."""

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

import psutil
from urllib3.exceptions import HTTPError

from frazil import health
from frazil.config import Config, KafkaConfig, TlsConfig, format_bytes, split_listen
from frazil.config.values import local_url
from frazil.dependencies import Check as Ask
from frazil.dependencies import Checked
from frazil.errors import ConfigError, FrazilError, SetupFault, StoreUnavailable, StoreUnsafe
from frazil.http_client import HttpClient
from frazil.paths import check_writable, is_open_to_others, private_folders
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
    """One thing looked at. Whatever is not ok has a `fix` in plain words."""

    name: str
    status: Status
    found: str
    fix: str | None = None


def run_checks(config: Config) -> list[Check]:
    """Every check, in the order that an operator would go through them. Never raises."""
    checks: list[Check] = []
    for name, look in _looks(config):
        try:
            checks.extend(look(config))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            checks.append(
                Check(name, "fail", f"the check itself failed: {text}", "report this as a bug of frazil")
            )
    return checks


def _looks(config: Config) -> Iterator[tuple[str, Callable[[Config], Iterator[Check]]]]:
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
    """Landing runs on Spark, which needs Java 17 or 21; receiving needs none."""
    from frazil.pipeline.java import find_java

    try:
        java = find_java()
        yield Check("java", "ok", f"Spark will use {java} at {java.home}")
    except ConfigError as error:
        yield Check("java", "warn", str(error), "receiving works without it, landing in Iceberg does not")


def check_jars(config: Config) -> Iterator[Check]:
    """Spark's jars are fetched once; a machine without a network should have them before."""
    from frazil.pipeline.jars import missing, packages

    needed = packages(config)
    if absent := missing(needed):
        found = f"{len(absent)} of {len(needed)} will be fetched from Maven when Spark first starts"
        yield Check("jars", "warn", found, "run `python -m frazil.pipeline.jars` while there is a network")
    else:
        yield Check("jars", "ok", f"all {len(needed)} that Spark needs are here")


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
    """`health` is where the process that has the port says that it is frazil's."""
    if split_listen(listen)[1] == 0:
        return Check(name, "ok", f"{listen}: any free port will be taken")
    try:
        check_free(key, listen)
    except PortTaken as taken:
        if frazil_answers(health, tls):
            by = taken.owner or "a process that this user cannot see"
            return Check(name, "ok", f"{listen} is in use by {by}: frazil is running and answers /healthz")
        if tls is not None and tls.client_ca_file is not None:
            found = f"{taken.found}, perhaps frazil: it would only answer a client certificate"
            return Check(name, "warn", found, f"if it is something else: {taken.fix}")
        return Check(name, "fail", taken.found, taken.fix)
    except SetupFault as fault:
        return Check(name, "fail", fault.found, fault.fix)
    return Check(name, "ok", f"{listen} is free")


def frazil_answers(listen: str, tls: TlsConfig | None) -> bool:
    """Whether frazil answers /healthz there."""
    client = HttpClient(verify=False, connect_seconds=2)  # nothing secret is sent: any certificate will do
    try:
        _, body = client.get(f"{local_url(listen, tls=tls is not None)}/healthz", seconds_max=2)
        return health.parse(body) is not None
    except (OSError, ValueError, HTTPError):
        return False
    finally:
        client.close()


def check_retention(config: Config) -> Iterator[Check]:
    """Rules that cannot be understood keep rows for ever, so they are to be found before they are due."""
    from frazil.pipeline.maintain.retain.check import check_rules

    problems = check_rules(config)
    for problem in problems:
        yield Check(
            "retention", "fail", problem, "correct it, and try it first: `frazil query` takes the same WHERE"
        )
    if not problems:
        count = len(config.maintain.retention.rules)
        yield Check("retention", "ok", f"the tables have what the conditions of {count} rules name")


def check_data_folder(config: Config) -> Iterator[Check]:
    """Folders can be written, survive a crash, and have room."""
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
    """Keys and tenants mean nothing to a user of this machine who can read the files."""
    paths = [folder for _, folder in private_folders(config)]
    if config.lake.catalog.type == "sqlite":
        paths.append(config.catalog_file)
    if config.query.audit_file is not None:
        paths.append(config.query.audit_file)
    if found := [str(path) for path in paths if is_open_to_others(path)]:
        names = ", ".join(found)
        fix = f"`chmod o-rwx {' '.join(found)}`; if another account reads them, give its group access"
        return Check("other users", "warn", f"every user of this machine can read {names}", fix)
    return Check("other users", "ok", "only the owner and the group of the folders can read the data")


def _writable(name: str, key: str, folder: Path) -> Check:
    try:
        check_writable(key, folder, may_be_full=False)
    except SetupFault as fault:
        return Check(name, "fail", fault.found, fault.fix)
    if not folder.exists():
        return Check(name, "ok", f"{folder} does not exist yet and can be made")
    return Check(name, "ok", f"{folder} can be written to")


def _file_system(name: str, folder: Path) -> Iterator[Check]:
    name = f"{name}: file system"
    kind = file_system_type(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".frazil-doctor-", dir=nearest_existing(folder)) as scratch:
            seconds = _link_and_fsync(Path(scratch))
    except OSError as error:
        fix = "put data_dir (or wal.local.path) on a local disk with ext4, xfs, btrfs or apfs"
        yield Check(name, "fail", f"{kind or 'it'} does not do link and fsync: {error.strerror}", fix)
        return
    found = f"{kind or 'unknown type'}; link and fsync work, one segment takes {seconds * 1000:.1f} ms"
    if kind in ("tmpfs", "ramfs"):
        fix = "fine for a trial; put data_dir (or wal.local.path) on a disk to keep data"
        yield Check(name, "warn", f"{found}, but it is memory: a reboot loses everything acked", fix)
    elif kind is not None and (kind.startswith("nfs") or kind in ("cifs", "smb3", "9p", "fuse.sshfs")):
        fix = "use a local disk, or wal.type s3 for shared storage"
        yield Check(
            name, "warn", f"{found}, but it is a network file system: durable only if its server is", fix
        )
    elif seconds > 0.1:
        fix = "use a faster disk for the WAL (wal.local.path): every ack waits for this"
        yield Check(name, "warn", found, fix)
    else:
        yield Check(name, "ok", found)


def _link_and_fsync(scratch: Path) -> float:
    """What the local store does for a segment, best of three. OSError where the file system cannot."""
    best = float("inf")
    for attempt in range(3):
        start = time.perf_counter()
        written, segment = scratch / f"{attempt}.tmp", scratch / f"{attempt}.parquet"
        with written.open("wb") as file:
            file.write(b"frazil" * 1000)
            file.flush()
            os.fsync(file.fileno())
        os.link(written, segment)
        folder = os.open(scratch, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        best = min(best, time.perf_counter() - start)
        try:
            os.link(written, segment)
        except FileExistsError:
            continue
        raise OSError(0, "link replaced a file that was there")
    return best


def file_system_type(folder: Path) -> str | None:
    """Returns the type of the file system that `folder` is on; None if unknown."""
    path = nearest_existing(folder).resolve()
    mounts = [
        mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)
    ]  # of mounts on the same folder the last one is visible
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else None


def _free_disk(config: Config) -> Check:
    free = shutil.disk_usage(nearest_existing(config.wal_dir)).free
    least = config.wal.local.free_bytes_min
    found = f"{free / 1e9:.1f} GB free for the WAL; the receiver refuses below {format_bytes(least)}"
    if free < least:
        return Check("free disk", "fail", found, "free some disk, or lower wal.local.free_bytes_min")
    if free < least + 2 * (1 << 30):
        return Check(
            "free disk", "warn", found, "free some disk soon: less than 2 GiB is left until it refuses"
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
    yield Check("open files", "warn", f"only {soft} allowed: connections and segments share them", fix)


def check_clock(config: Config) -> Iterator[Check]:
    """Stream ids and retention go by the clock, and a disk on another machine goes by its own."""
    now = datetime.now(UTC)
    if now.year < 2025:
        yield Check("clock", "fail", f"it says {now:%Y-%m-%d}", "set the clock (NTP)")
        return
    folder = nearest_existing(config.data_dir)
    try:
        with tempfile.NamedTemporaryFile(prefix=".frazil-doctor-", dir=folder) as file:
            before = time.time()
            os.utime(file.name)
            skew = os.stat(file.name).st_mtime - before
    except OSError:
        yield Check("clock", "ok", f"it says {now:%Y-%m-%d %H:%M:%S} UTC (the disk's time could not be read)")
        return
    if abs(skew) > CLOCK_SKEW_SECONDS_MAX:
        fix = "synchronise both machines' clocks (NTP)"
        yield Check("clock", "warn", f"the clock and the file system's differ by {skew:+.1f} s", fix)
    else:
        yield Check("clock", "ok", f"it says {now:%Y-%m-%d %H:%M:%S} UTC, as does the file system")


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
    # The standard library reads a certificate's dates only from a file; private, but there since Python 3.
    facts = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    begins = datetime.fromtimestamp(ssl.cert_time_to_seconds(facts["notBefore"]), UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(facts["notAfter"]), UTC)
    now = datetime.now(UTC)
    renew = "renew it; those who run pick the new files up by themselves"
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
    """Whether of many writers that create one name at once exactly one is told that it won."""
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
        fix = "use another store: with this one, data that was acked could be overwritten"
        yield Check("wal store", "fail", f"{where}: conditional writes do not hold: {error}", fix)
    except StoreUnavailable as error:
        fix = (
            "check the address, the bucket, the credentials and the network"
            if config.wal.type == "s3"
            else "check the folder's permissions and the free disk"
        )
        yield Check("wal store", "fail", f"{where} cannot be written to: {error}", fix)
    except FrazilError as error:
        yield Check("wal store", "fail", f"{where}: {error}", "correct the section wal of the configuration")
    else:
        found = (
            f"{where}: conditional writes held in {result.rounds} rounds of {result.writers} "
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
        return Check("kafka", "ok", f"the brokers answer; {', '.join(missing)} will be made at the start")
    return Check("kafka", "ok", f"the brokers answer; {', '.join(found)} are there")


def check_catalog(config: Config) -> Iterator[Check]:
    """Whether the catalog answers. Makes nothing in it."""
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
        f"the namespace {config.lake.namespace} {'is there' if found[0] else 'will be made at the start'}"
    )
    yield Check("catalog", "ok", f"{catalog.type} answers; {tables}")


def _check_sqlite(config: Config) -> Check:
    path = config.catalog_file
    if not path.exists():
        return Check("catalog", "ok", f"{path} does not exist yet and will be made at the start")
    try:
        check_sqlite(path)
    except SetupFault as fault:
        return Check("catalog", "fail", fault.found, fault.fix)
    return Check("catalog", "ok", f"{path} is a SQLite database and can be written to")


def check_warehouse(config: Config) -> Iterator[Check]:
    """Whether the warehouse can be listed, written, read and deleted from. Leaves nothing behind."""
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
        yield Check("warehouse", "ok", f"{where} can be listed, written, read and deleted from")


def _use_warehouse(config: Config) -> str:
    from frazil.lake.files import LakeFileIO, file_properties

    files = LakeFileIO(file_properties(config))
    location, data = f"{config.warehouse}/doctor/{secrets.token_hex(16)}", secrets.token_bytes(16)
    files.list(f"{config.warehouse}/doctor")
    files.write(location, data)
    try:
        return "" if files.read(location) == data else "what was read is not what was written"
    finally:
        files.delete(location)


def _problem(ask: Ask) -> str:
    return Checked(ask, wait_seconds=ANSWER_SECONDS_MAX).problem()
