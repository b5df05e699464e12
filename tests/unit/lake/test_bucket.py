"""The lake's files in a bucket."""

from __future__ import annotations

import io
import time
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.errors import ConfigError, StoreUnavailable
from frazil.lake import files as files_module
from frazil.lake.files import LakeFileIO, connection_of, open_bucket
from frazil.storage import s3
from frazil.storage.s3 import ObjectReader
from tests.components.s3 import S3Server
from tests.support.lake.http_stub import http_stub
from tests.support.wal_stores import s3_store


@pytest.fixture(scope="module")
def files(moto_s3: S3Server) -> LakeFileIO:
    return LakeFileIO(
        {
            "s3.endpoint": moto_s3.endpoint,
            "s3.access-key-id": moto_s3.access_key,
            "s3.secret-access-key": moto_s3.secret_key,
            "frazil.s3.allow-http": "true",
        }
    )


@pytest.fixture
def root(moto_s3: S3Server) -> str:
    return f"s3://{moto_s3.make_bucket(f'lake-{uuid.uuid4().hex}')}"


def at(url: str, **properties: str) -> LakeFileIO:
    """Files in the bucket of a server that answers as a test wants."""
    keys = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "frazil.s3.allow-http": "true"}
    return LakeFileIO({"s3.endpoint": url, **keys, **properties})


def test_what_was_written_is_read_listed_and_deleted(files: LakeFileIO, root: str) -> None:
    place = f"{root}/otel/logs/service=a%2Fb c/x"
    files.write(place, pa.py_buffer(b"data"))
    files.write(f"{root}/otel/empty", b"")
    assert files.read(place) == files.read(place.replace("s3:", "s3a:")) == b"data"
    assert files.read(f"{root}/otel/empty") == b""
    assert len(files.new_input(place)) == 4
    assert files.list(f"{root}/otel") == files.list(f"{root}/otel/") == (("logs",), ("empty",))
    assert files.list(root) == (("otel",), ())
    files.delete(place)
    files.delete(place)
    assert not files.new_input(place).exists()
    with pytest.raises(FileNotFoundError, match="service=a"):
        files.read(place)


def test_a_name_is_taken_once_unless_overwriting_is_asked_for(files: LakeFileIO, root: str) -> None:
    place = f"{root}/x"
    files.write(place, b"first")
    files.write(place, b"first")  # a retry whose first answer was lost looks like this
    with pytest.raises(FileExistsError):
        files.write(place, b"second")
    files.write(place, b"third", overwrite=True)
    assert files.read(place) == b"third"


def test_large_files_go_in_parts_and_still_take_no_name_twice(
    files: LakeFileIO, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_SINGLE_PUT_BYTES_MAX", 1_000_000)
    data = bytes(range(256)) * 70_000  # more than one part
    files.write(f"{root}/large", data)
    assert files.read(f"{root}/large") == data
    with pytest.raises(FileExistsError):
        files.write(f"{root}/large", data[1:])


def test_a_large_segment_of_the_wal_is_written_conditionally_too(
    moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a writer that is taken for dead could overwrite the tombstone of its stream."""
    monkeypatch.setattr(s3, "_SINGLE_PUT_BYTES_MAX", 1000)
    uploads: list[object] = []
    monkeypatch.setattr(s3.S3Store, "_upload", lambda *given, **more: uploads.append(given))
    store = s3_store(moto_s3, moto_s3.make_bucket(f"wal-{uuid.uuid4().hex}"))
    store.create("logs/a", bytes(5000))
    store.create("logs/a", bytes(5000))  # an earlier attempt, whose answer was lost
    with pytest.raises(FileExistsError):
        store.create("logs/a", bytes(5001))
    assert uploads == []


def test_of_a_large_parquet_file_only_what_is_asked_for_is_read(
    files: LakeFileIO, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_READ_WHOLE_BYTES_MAX", 100)
    table = pa.table({name: [f"{name}{number}" for number in range(20_000)] for name in "abcdefgh"})
    with files.new_output(f"{root}/x.parquet").create() as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    with files.new_input(f"{root}/x.parquet").open() as source:
        assert isinstance(source, ObjectReader)
        reads: list[int] = []
        real = source._store.read_range
        monkeypatch.setattr(
            source._store, "read_range", lambda *range_: reads.append(range_[2]) or real(*range_)
        )
        assert pq.read_table(pa.PythonFile(source), columns=["c"]) == table.select(["c"])
    assert 0 < sum(reads) < len(files.new_input(f"{root}/x.parquet")) / 4


def test_the_reader_of_large_objects_is_a_file_like_any_other(
    files: LakeFileIO, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_READ_WHOLE_BYTES_MAX", 0)
    data = bytes(range(100))
    files.write(f"{root}/x", data)
    with files.new_input(f"{root}/x").open() as source, io.BytesIO(data) as model:
        for offset, whence in ((0, 0), (10, 0), (-5, 1), (-7, 2), (3, 2)):
            assert source.seek(offset, whence) == model.seek(offset, whence)
            assert source.read(4) == model.read(4)
            assert source.tell() == model.tell()
        source.seek(0)
        assert io.BufferedReader(source, 16).read() == data  # type: ignore[arg-type]


def test_a_bucket_that_is_not_there_does_not_look_like_a_lost_file(files: LakeFileIO) -> None:
    for ask in (files.read, files.list, lambda place: files.write(place, b"")):
        with pytest.raises(StoreUnavailable):
            ask("s3://there-is-no-such-bucket/x")


def test_a_store_without_tls_needs_permission() -> None:
    with pytest.raises(ConfigError, match="allow_http"):
        LakeFileIO({"s3.endpoint": "http://127.0.0.1:9"}).new_input("s3://bucket/x")


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_RETRIES_MAX", 1)
    with http_stub(lambda request: (200, b"")) as server:
        server.hangs = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            at(server.url, **{"s3.request-timeout": "0.3"}).read("s3://bucket/x")
    assert time.monotonic() - began < 5


def test_a_passing_failure_is_tried_again() -> None:
    answers = iter([(503, b""), (200, b"data")])
    with http_stub(lambda request: next(answers)) as server:
        assert at(server.url).read("s3://bucket/x") == b"data"


def test_a_store_that_refuses_the_key_is_unavailable() -> None:
    with http_stub(lambda request: (403, b"")) as server, pytest.raises(StoreUnavailable):
        at(server.url).read("s3://bucket/x")


def test_vended_credentials_are_sent_and_not_mixed_with_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "from-the-environment")
    with http_stub(lambda request: (200, b"data")) as server:
        at(server.url, **{"s3.session-token": "vended", "client.region": "eu-west-3"}).read("s3://bucket/x")
        at(server.url).read("s3://bucket/x")
    vended, static = (request.headers for request in server.requests)
    assert vended["x-amz-security-token"] == "vended"
    assert "Credential=key/" in vended["authorization"]
    assert "/eu-west-3/s3/" in vended["authorization"]
    assert "x-amz-security-token" not in static


def test_objects_are_encrypted_with_the_key_that_is_configured() -> None:
    with http_stub(lambda request: (200, b"")) as server:
        at(server.url, **{"s3.sse-kms-key-id": "arn:key"}).write("s3://bucket/x", b"data")
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("PUT", "/bucket/x", b"data")
    assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:key"
    assert request.headers["if-none-match"] == "*"


def test_one_client_serves_all_tables_of_a_bucket_and_secrets_are_not_shown() -> None:
    properties = {"s3.access-key-id": "key", "s3.secret-access-key": "hidden", "s3.session-token": "hidden"}
    connection = connection_of(properties)
    assert open_bucket("bucket", connection) is open_bucket("bucket", connection_of(dict(properties)))
    assert open_bucket("bucket", connection) is not open_bucket("other", connection)
    assert "hidden" not in repr(connection)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, False),
        ({"s3.endpoint": "https://s3.example.com"}, True),
        ({"s3.endpoint": "https://s3.example.com", "s3.path-style-access": "false"}, False),
        ({"s3.path-style-access": "true"}, True),
    ],
)
def test_the_bucket_is_in_the_path_if_said_so_or_if_there_is_an_endpoint(
    properties: dict[str, str], expected: bool
) -> None:
    assert connection_of(properties).path_style is expected
