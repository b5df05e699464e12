"""Keys from the configuration are used as they are, whatever the environment holds."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import SecretStr

from frazil.config import S3WalConfig
from frazil.wal.store import open_bucket


def test_a_session_token_of_the_environment_is_not_mixed_with_configured_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({key.lower(): value for key, value in self.headers.items()})
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-account")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = S3WalConfig(
            bucket="wal",
            endpoint=f"http://127.0.0.1:{server.server_address[1]}",
            allow_http=True,
            access_key_id="ours",
            secret_access_key=SecretStr("secret"),
        )
        with pytest.raises(FileNotFoundError):
            open_bucket(config, 5).read("logs/x")
        server.shutdown()
    (headers,) = seen
    assert "Credential=ours/" in headers["authorization"]
    assert "x-amz-security-token" not in headers
