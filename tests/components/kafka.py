"""A real Kafka broker: one node with its own controller, its jars fetched once with Maven.

It listens twice: in plain text, and with TLS and a password (PLAIN and SCRAM-SHA-512). Topics are never made
by themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.integration.authority import Authority

from .cache import ComponentMissingError, built_once, cache_folder
from .process import (
    READY_SECONDS_MAX,
    STARTS_MAX,
    ComponentDiedError,
    dies_with_parent,
    end,
    free_port,
    wait_until,
)

POM = Path(__file__).with_name("kafka-pom.xml")
FETCH_SECONDS_MAX = 900
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
USER = "frazil"
PLAIN_PASSWORD = 'it\'s "quoted", C:\\new; {ü}=#1'
"""Whatever puts a password into a configuration must quote it rightly to get in with this one."""
SCRAM_PASSWORD = "scram-secret"
_JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def kafka_jars() -> Path:
    """The folder of jars; another pom is another folder."""
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise ComponentMissingError("Kafka", f"`{program}` (Debian's package {package})")
    return built_once(f"kafka-{digest}", "jars", _fetch)


def _fetch(into: Path) -> None:
    print(f"fetching Kafka's jars (once; kept in {cache_folder()})", file=sys.stderr, flush=True)
    command = ["mvn", "--batch-mode", "--quiet", "--file", POM, "dependency:copy-dependencies"]
    ended = subprocess.run(
        [*command, f"-DoutputDirectory={into / 'jars'}"],
        cwd=into,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
    )
    if ended.returncode != 0:
        raise ComponentMissingError("Kafka", f"Maven ended with {ended.returncode}:\n{ended.stdout[-2000:]}")


@dataclass
class KafkaBroker:
    """Where a broker is and how to get in. It keeps its ports and its data when it is started again."""

    folder: Path
    jars: Path
    port: int = 0
    secure_port: int = 0
    controller_port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """In plain text, for anyone."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        """TLS, with a certificate of `ca_file`, and a password of `USER`."""
        return f"127.0.0.1:{self.secure_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def client_files(self) -> tuple[Path, Path]:
        """A certificate that the broker accepts, and its key."""
        return self.folder / "client.pem", self.folder / "client.key"

    def format(self) -> None:
        """New certificates, an empty log and the SCRAM user."""
        self.folder.mkdir(parents=True, exist_ok=True)
        authority = Authority("kafka")
        broker, client = authority.issue("broker"), authority.issue("client")
        self.ca_file.write_bytes(authority.certificate)
        (self.folder / "broker.pem").write_bytes(broker.key + broker.certificate)
        for file, content in zip(self.client_files, (client.certificate, client.key), strict=True):
            file.write_bytes(content)
        (self.folder / "log4j2.properties").write_text(properties(_LOGGING))
        self._configure()
        scram = f'SCRAM-SHA-512=[name="{USER}",password="{SCRAM_PASSWORD}"]'
        self._tool(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self._settings, "--add-scram", scram
        )

    def start(self) -> None:
        """Returns when it answers. The first start takes other ports when its own are taken."""
        is_first = not self.port
        for attempt in range(1, STARTS_MAX + 1):
            if is_first:
                self.port, self.secure_port, self.controller_port = free_port(), free_port(), free_port()
                self._configure()
            with self._log.open("ab") as log:
                command = [*_JAVA, "-Xmx384m", *self._class_path, "kafka.Kafka", self._settings]
                self._process = subprocess.Popen(
                    dies_with_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            if self._became_ready(self._process):
                return
            self.stop()
            if not is_first or attempt == STARTS_MAX:
                raise ComponentDiedError("kafka", "did not get ready", self._log)

    def _became_ready(self, process: subprocess.Popen[bytes]) -> bool:
        def ended() -> bool:
            return process.poll() is not None

        return wait_until(self.answers, seconds_max=READY_SECONDS_MAX, give_up=ended) and not ended()

    def answers(self) -> bool:
        """Whether the broker tells its topics and is one that can lead them."""
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def kill(self) -> None:
        """As a power cut would end it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Connections stay open, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)

    def restart(self) -> None:
        """On the same ports and data, if it runs or not."""
        self.stop()
        self.start()

    def topics_seen_by_java(self, settings: Mapping[str, str]) -> set[str]:
        """What Kafka's own client, with these settings, is told of topics."""
        file = self.folder / "java-client.properties"
        file.write_text(properties(settings))
        address = settings["bootstrap.servers"]
        tool = "org.apache.kafka.tools.TopicCommand"
        return set(
            self._tool(tool, "--bootstrap-server", address, "--command-config", file, "--list").split()
        )

    @property
    def _log(self) -> Path:
        return self.folder / "kafka.log"

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _class_path(self) -> list[str]:
        return [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-cp", f"{self.jars}/*"]

    def _tool(self, name: str, *arguments: str | Path) -> str:
        ended = subprocess.run(
            [*_JAVA, "-Xmx128m", *self._class_path, name, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def _configure(self) -> None:
        login = f"required user_{USER}={_jaas_text(PLAIN_PASSWORD)};"
        plain = f"org.apache.kafka.common.security.plain.PlainLoginModule {login}"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        chosen = {
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SECURE://127.0.0.1:{self.secure_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address},SECURE://{self.secure_address}",
            "log.dirs": str(self.folder / "log"),
            "listener.name.secure.ssl.keystore.location": str(self.folder / "broker.pem"),
            "listener.name.secure.ssl.truststore.location": str(self.ca_file),
            "listener.name.secure.plain.sasl.jaas.config": plain,
            "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
        }
        self._settings.write_text(properties(_SETTINGS | chosen))


_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.secure.ssl.keystore.type": "PEM",
    "listener.name.secure.ssl.truststore.type": "PEM",
    "listener.name.secure.ssl.client.auth": "requested",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a kill the controller must miss the old session soon, or the broker cannot register again.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
_LOGGING = {
    "status": "error",
    "appender.console.type": "Console",
    "appender.console.name": "console",
    "appender.console.target": "SYSTEM_ERR",
    "appender.console.layout.type": "PatternLayout",
    "appender.console.layout.pattern": "%d %p %c{1}: %m%n",
    "rootLogger.level": "warn",
    "rootLogger.appenderRef.console.ref": "console",
}


def properties(settings: Mapping[str, str]) -> str:
    """A file that Java's Properties read: Latin-1, with backslashes and line ends escaped."""

    def escaped(value: str) -> str:
        value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in value)

    return "".join(f"{key}={escaped(value)}\n" for key, value in settings.items())


def _jaas_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@contextlib.contextmanager
def running_kafka(folder: Path) -> Iterator[KafkaBroker]:
    """A broker with nothing in it, until the block ends."""
    broker = KafkaBroker(folder, kafka_jars())
    broker.format()
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


if __name__ == "__main__":
    try:
        print(kafka_jars())
    except ComponentMissingError as error:
        print(error, file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 0)
