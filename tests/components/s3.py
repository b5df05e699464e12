"""S3 servers: two that keep their word on conditional writes, and two that do not."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .cache import ComponentMissingError
from .golang import versitygw
from .process import answers, serving
from .proxy import FaultyProxy


@dataclass(frozen=True)
class S3Server:
    """Where an S3 server is and how to get in."""

    endpoint: str
    access_key: str = "test"
    secret_key: str = "testtest"
    region: str = "us-east-1"

    @property
    def host(self) -> str:
        return str(urlsplit(self.endpoint).hostname)

    @property
    def port(self) -> int:
        return int(urlsplit(self.endpoint).port or 80)

    def through(self, proxy: FaultyProxy) -> S3Server:
        """The same server, seen through a proxy before it."""
        return replace(self, endpoint=proxy.url)

    def client(self) -> Any:
        """A boto3 client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> str:
        with contextlib.closing(self.client()) as client:
            client.create_bucket(Bucket=name)
        return name

    def store(self, bucket: str, **options: Any) -> Any:
        """An obstore `S3Store`; `options` as it takes them (`client_options`, `retry_config`, `prefix`)."""
        from obstore.store import S3Store

        client_options = {"allow_http": True, **options.pop("client_options", {})}
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region=self.region,
            client_options=client_options,
            **options,
        )


@contextlib.contextmanager
def moto_server(folder: Path) -> Iterator[S3Server]:
    """moto: conditional writes hold (see moto_process.py), nothing is durable, signatures are not checked."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise ComponentMissingError("moto's S3 server", "the PyPI package moto[server]")

    def command(port: int) -> list[str | Path]:
        return [sys.executable, "-P", Path(__file__).with_name("moto_process.py"), str(port)]

    with serving("moto", folder, command, ready=lambda port: answers(port, "/moto-api/data.json")) as port:
        yield S3Server(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def versitygw_server(folder: Path) -> Iterator[S3Server]:
    """versitygw over a folder: conditional writes hold, signatures are checked, nothing is fsynced."""
    program = versitygw()
    buckets, sidecar = folder / "buckets", folder / "sidecar"
    for made in (buckets, sidecar):
        made.mkdir(parents=True, exist_ok=True)
    server = S3Server("")
    keys = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}

    def command(port: int) -> list[str | Path]:
        return [program, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", sidecar, buckets]

    with serving("versitygw", folder, command, ready=answers, environment=keys) as port:
        yield replace(server, endpoint=f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def lying_s3(folder: Path) -> Iterator[S3Server]:
    """Accepts conditional PUTs and ignores the condition, as stores do that do not know the header."""
    with (
        moto_server(folder) as honest,
        FaultyProxy(honest.host, honest.port, folder=folder, conditional_puts="ignored") as proxy,
    ):
        yield honest.through(proxy)


@contextlib.contextmanager
def racy_s3(folder: Path, *, gap_seconds: float = 0.25) -> Iterator[S3Server]:
    """Looks whether the object exists, then writes: creates in turn are refused, side by side all win."""
    with (
        moto_server(folder) as honest,
        FaultyProxy(
            honest.host, honest.port, folder=folder, conditional_puts="racy", race_gap_seconds=gap_seconds
        ) as proxy,
    ):
        yield honest.through(proxy)
