"""The Iceberg catalog: what engines are told, and that only files of the lake are served."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list

from frazil.config import Config
from frazil.errors import CatalogUnavailable, Forbidden, Permanent
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.query.lake import Lake
from frazil.query.service import QueryService
from frazil.serve.app import create_app
from frazil.serve.auth import Authenticator, require_admin
from frazil.serve.iceberg import files as iceberg_files
from frazil.serve.iceberg.avro import rewrite
from frazil.serve.iceberg.catalog import iceberg_router
from frazil.serve.iceberg.files import LakeFiles, byte_range
from tests.support.serve.avro_files import avro_file

# A real lake, as PyIceberg writes it.


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return Config.model_validate({"data_dir": tmp_path_factory.mktemp("a lake")})


@pytest.fixture(scope="module")
def catalog(config: Config) -> Iterator[Catalog]:
    """Tests leave it as it is."""
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        table = catalog.create_table(
            "otel.numbers", schema=pa.schema([("a", pa.int64()), ("b", pa.string())])
        )
        for number in range(3):
            table.append(pa.table({"a": [number], "b": [f"b{number}"]}))
        yield catalog


class Client:
    """Asks the application without a port."""

    base_url = "http://127.0.0.1:4380"

    def __init__(self, config: Config, catalog: Callable[[], Catalog]) -> None:
        app = FastAPI()
        app.state.authenticator = Authenticator(config)
        app.include_router(iceberg_router(config, catalog, require_admin), prefix="/iceberg")
        self._transport = httpx.ASGITransport(app)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url=self.base_url) as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def head(self, path: str) -> httpx.Response:
        return self.request("HEAD", path)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


@pytest.fixture(scope="module")
def client(config: Config, catalog: Catalog) -> Client:
    return Client(config, lambda: catalog)


def signed(client: Client, key: str, given: Mapping[str, str], method: str = "GET", **headers: str) -> Any:
    """Asks for a key as any client of S3 does, signed by botocore."""
    # Dots are encoded, too: else the client resolves them before the server can refuse them.
    url = f"{client.base_url}/iceberg/{quote(key, safe='/').replace('..', '%2E%2E')}"
    request = AWSRequest(method, url, headers=headers)
    pair = BotoCredentials(
        given["s3.access-key-id"], given["s3.secret-access-key"], given["s3.session-token"]
    )
    S3SigV4Auth(pair, "s3", given["s3.region"]).add_auth(request)
    return client.request(method, url, headers=dict(request.headers.items()))


def loaded(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/iceberg/v1/namespaces/otel/tables/numbers").json()
    return found


def key_of(address: str) -> str:
    return address.removeprefix("s3://iceberg/")


def test_manifest_lists_say_how_long_the_rewritten_manifests_are(
    client: Client, config: Config, tmp_path: Path
) -> None:
    table = loaded(client)
    lists = [snapshot["manifest-list"] for snapshot in table["metadata"]["snapshots"]]
    assert len(lists) == 3
    for address in lists:
        answer = signed(client, key_of(address), table["config"])
        assert config.warehouse.encode() not in answer.content
        local = tmp_path / "list.avro"
        local.write_bytes(answer.content)
        manifests = list(read_manifest_list(PyArrowFileIO().new_input(str(local))))
        assert manifests
        for manifest in manifests:
            content = signed(client, key_of(manifest.manifest_path), table["config"]).content
            assert len(content) == manifest.manifest_length
            local.write_bytes(content)
            for path in _file_paths(local, manifest):
                assert path.startswith("s3://iceberg/files/otel/numbers/data/")
                assert signed(client, key_of(path), table["config"], "HEAD").status_code == 200


def _file_paths(local: Path, manifest: ManifestFile) -> list[str]:
    manifest = ManifestFile.from_args(
        manifest_path=str(local),
        manifest_length=local.stat().st_size,
        partition_spec_id=0,
        content=0,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
    )
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(PyArrowFileIO())]


def test_metadata_files_are_served_as_the_catalog_tells_them(client: Client) -> None:
    table = loaded(client)
    assert table["metadata-location"].startswith("s3://iceberg/files/otel/numbers/metadata/")
    answer = signed(client, key_of(table["metadata-location"]), table["config"])
    assert answer.json() == table["metadata"]
    for older in table["metadata"]["metadata-log"]:
        assert signed(client, key_of(older["metadata-file"]), table["config"]).status_code == 200


def test_heads_and_ranges_are_answered_as_by_s3(client: Client, config: Config) -> None:
    given = loaded(client)["config"]
    for path in [*Path(config.warehouse).rglob("*.parquet"), *Path(config.warehouse).rglob("*.avro")]:
        key = f"files/{path.relative_to(config.warehouse)}"
        whole = signed(client, key, given)
        size = len(whole.content)
        head = signed(client, key, given, "HEAD")
        assert (head.status_code, head.content, int(head.headers["content-length"])) == (200, b"", size)
        assert head.headers["etag"] == whole.headers["etag"]
        if path.suffix == ".parquet":
            assert whole.content == path.read_bytes()
        for sent, expected in (
            ("bytes=3-9", slice(3, 10)),
            ("bytes=-8", slice(-8, None)),
            ("bytes=5-", slice(5, None)),
        ):
            part = signed(client, key, given, Range=sent)
            assert (part.status_code, part.content) == (206, whole.content[expected])
            assert part.headers["content-range"].endswith(f"/{size}")
        beyond = signed(client, key, given, Range=f"bytes={size}-")
        assert (beyond.status_code, "InvalidRange" in beyond.text) == (416, True)


@given(st.integers(0, 50), st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_a_range_is_what_slicing_gives(size: int, first: int | None, last: int | None) -> None:
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    content = bytes(range(size))
    found = byte_range(header, size)
    if first is None and last is None:
        assert found == (0, size, False)
    elif first is None:
        assert last is not None
        tail = content[-last:] if last else b""
        assert (content[found[0] : found[1]] if found else b"") == tail
    elif last is not None and last < first:
        assert found == (0, size, False)
    else:
        wanted = content[first : None if last is None else last + 1]
        assert (content[found[0] : found[1]] if found else b"") == wanted


@pytest.mark.parametrize("header", [None, "", "bytes", "bytes=1-2,5-6", "lines=1-2", "bytes=a-b", "bytes=-"])
def test_a_range_that_s3_does_not_know_gives_the_whole(header: str | None) -> None:
    assert byte_range(header, 10) == (0, 10, False)


def test_what_is_not_of_the_lake_is_refused(config: Config, client: Client, tmp_path: Path) -> None:
    shutil.copytree(config.data_dir, tmp_path / "data")
    config = Config.model_validate({"data_dir": tmp_path / "data"})  # with the secret of the other
    given = loaded(client)["config"]
    client = Client(config, lambda: pytest.fail("files need no catalog"))
    warehouse = Path(config.warehouse)
    (tmp_path / "secret.parquet").write_bytes(b"secret")
    (warehouse / "out.parquet").symlink_to(tmp_path / "secret.parquet")
    (warehouse / "folder").symlink_to(tmp_path)
    (warehouse / "notes.txt").write_bytes(b"secret")
    (warehouse.parent / "warehouse-two").mkdir()
    (warehouse.parent / "warehouse-two" / "x.parquet").write_bytes(b"secret")
    for key in (
        "files/../secret.parquet",
        "files/otel/../../../secret.parquet",
        "files//etc/passwd.parquet",
        f"files/{tmp_path}/secret.parquet",
        "files/../warehouse-two/x.parquet",
        "files/out.parquet",
        "files/folder/secret.parquet",
        "files/notes.txt",
        "files/x\0.parquet",
        "files/otel/numbers",
        "files/",
        "files/../catalog.db",
        "files/../iceberg.secret",
    ):
        answer = signed(client, key, given)
        assert (answer.status_code, "<Code>AccessDenied<" in answer.text) == (403, True), key
    lake = LakeFiles(config.warehouse)
    for key in ("../secret.parquet", "out.parquet", "folder/secret.parquet", "notes.txt", "a/../b.parquet"):
        with pytest.raises(Forbidden):
            lake.find(key)
    gone = signed(client, "files/otel/numbers/data/gone.parquet", given)
    assert (gone.status_code, "NoSuchKey" in gone.text) == (404, True)
    folder = Path(config.warehouse) / "folder.parquet"
    folder.mkdir()
    assert signed(client, "files/folder.parquet", given).status_code == 404


def test_a_log_below_the_warehouse_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "1.parquet").write_bytes(b"")
    with pytest.raises(Forbidden):
        LakeFiles(str(tmp_path), hidden=[tmp_path / "wal"]).find("wal/1.parquet")


def test_files_cannot_be_written(client: Client, config: Config) -> None:
    given = loaded(client)["config"]
    before = sorted(Path(config.warehouse).rglob("*"))
    for method in ("PUT", "POST", "DELETE"):
        for key in ("files/otel/numbers/data/new.parquet", key_of(loaded(client)["metadata-location"])):
            answer = signed(client, key, given, method)
            assert (answer.status_code, "AccessDenied" in answer.text) == (403, True)
    assert sorted(Path(config.warehouse).rglob("*")) == before


def test_locations_of_every_form_become_addresses(tmp_path: Path) -> None:
    lake = LakeFiles("/data/lake")
    for form in ("/data/lake/t/f.avro", "file:/data/lake/t/f.avro", "file:///data/lake/t/f.avro"):
        assert lake.address(form) == "s3://iceberg/files/t/f.avro"
    for other in ("/data/lakes/f.avro", "s3://data/lake/f.avro", "text", "", "file:/data/f"):
        assert lake.address(other) == other


def test_compressed_metadata_is_served_compressed(tmp_path: Path) -> None:
    file = tmp_path / "1.metadata.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"location": str(tmp_path / "t")}).encode()))
    found = LakeFiles(str(tmp_path)).rewritten(str(file))
    assert found is not None
    assert json.loads(gzip.decompress(found))["location"] == "s3://iceberg/files/t"


def test_a_manifest_with_position_deletes_is_refused(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "data_file",
        "fields": [
            {"name": "content", "type": "int", "field-id": 134},
            {"name": "file_path", "type": "string", "field-id": 100},
        ],
    }
    file = tmp_path / "m.avro"
    file.write_bytes(avro_file(schema, [{"content": 1, "file_path": "/x"}], "deflate"))
    with pytest.raises(Permanent, match="position deletes"):
        LakeFiles(str(tmp_path)).rewritten(str(file))


def test_rewritten_files_are_made_once_and_the_cache_is_bounded(
    config: Config, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = rewrite

    def counted(data: bytes, edits: Any) -> bytes:
        made.append(len(data))
        return real(data, edits)

    monkeypatch.setattr(iceberg_files, "rewrite", counted)
    manifests = [str(path) for path in Path(config.warehouse).rglob("*.avro")]
    lake = LakeFiles(config.warehouse)
    threads = [
        threading.Thread(target=lambda: [lake.rewritten(path) for path in manifests]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == len(manifests)
    monkeypatch.setattr(iceberg_files, "_CACHE_BYTES_MAX", 1)
    small = LakeFiles(config.warehouse)
    assert [small.rewritten(path) for path in manifests] == [lake.rewritten(path) for path in manifests]


def test_files_need_a_signature_that_is_right(client: Client) -> None:
    table = loaded(client)
    key = key_of(table["metadata-location"])
    assert signed(client, key, table["config"]).status_code == 200
    wrong = {**table["config"], "s3.secret-access-key": "wrong"}
    answer = signed(client, key, wrong)
    assert (answer.status_code, "SignatureDoesNotMatch" in answer.text) == (403, True)
    assert client.get(f"/iceberg/{key}").status_code == 403
    assert client.head(f"/iceberg/{key}").status_code == 403


# The endpoints, where a real engine does not look.


def test_the_configuration_lists_what_is_answered_and_only_known_warehouses(client: Client) -> None:
    found = client.get("/iceberg/v1/config").json()
    assert found["overrides"] == {}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in found["endpoints"]
    for method, path in (each.split() for each in found["endpoints"]):
        path = path.replace("{prefix}/", "").replace("{namespace}", "otel").replace("{table}", "numbers")
        answer = client.request(method, f"/iceberg{path}", **({"json": {}} if method == "POST" else {}))
        if method in ("GET", "HEAD") or path.endswith("/metrics"):
            assert answer.status_code in (200, 204), path
        else:
            assert answer.status_code == 403, path
            assert answer.json()["error"]["message"] == "read-only; frazil pipeline writes"
    assert client.get("/iceberg/v1/config?warehouse=local").json()["overrides"] == {"prefix": "local"}
    assert client.get("/iceberg/v1/config?warehouse=frazil").json()["overrides"] == {}
    unknown = client.get("/iceberg/v1/config?warehouse=other")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundException")


@pytest.mark.parametrize("prefix", ["", "/local"])
def test_what_is_not_there_is_named_in_the_words_of_iceberg(client: Client, prefix: str) -> None:
    base = f"/iceberg/v1{prefix}/namespaces"
    for path, kind in (
        ("/none", "NoSuchNamespaceException"),
        ("/none/tables", "NoSuchNamespaceException"),
        ("/none/views", "NoSuchNamespaceException"),
        ("?parent=none", "NoSuchNamespaceException"),
        ("/otel/tables/none", "NoSuchTableException"),
        ("/otel/views/none", "NotFoundException"),
    ):
        answer = client.get(base + path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, kind), path
    assert client.get(f"{base}/a%1F%1Fb").status_code == 400
    assert client.get(f"{base}/otel/tables/numbers?snapshots=some").status_code == 400
    for path, status in (
        ("/otel", 204),
        ("/none", 404),
        ("/otel/tables/numbers", 204),
        ("/otel/tables/none", 404),
    ):
        assert client.head(base + path).status_code == status, path
    assert client.get(f"{base}?pageSize=1&pageToken=").json() == {"namespaces": [["otel"]]}
    assert client.post(f"{base}/otel/tables/numbers/metrics", json={}).status_code == 204


def test_a_catalog_that_does_not_answer_is_told_as_passing(config: Config) -> None:
    def silent() -> Catalog:
        raise CatalogUnavailable("it does not respond", retry_after_seconds=2.5)

    answer = Client(config, silent).get("/iceberg/v1/namespaces/otel/tables/numbers")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert answer.json()["error"]["type"] == "ServiceUnavailableException"


def test_the_endpoint_is_the_server_as_the_client_calls_it(client: Client) -> None:
    path = "/iceberg/v1/namespaces/otel/tables/numbers"
    assert loaded(client)["config"]["s3.endpoint"] == "http://127.0.0.1:4380"
    behind = client.get(path, headers={"Host": "localhost", "X-Forwarded-Proto": "https"}).json()
    assert behind["config"]["s3.endpoint"] == "https://localhost"


def test_what_is_kept_of_manifests_is_forgotten_when_rows_are_erased(config: Config) -> None:
    queries = QueryService(config)
    create_app(config, queries)
    (cache,) = queries._external_caches
    cache.put(("a manifest", 1), b"greatest value", 14)
    queries._lake = Lake(config)
    with contextlib.closing(queries._lake):
        queries._clear_if_erased([frozenset({"an erasure"})])
    assert cache.bytes == 0
