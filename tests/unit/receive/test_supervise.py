"""What the receiver's parent checks before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from frazil.config import load_config
from frazil.errors import ConfigError
from frazil.receive.supervise import run


def _config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "frazil.yaml"
    path.write_text(text)
    return path


def test_a_promoted_column_with_the_name_of_another_is_refused_with_advice(tmp_path: Path) -> None:
    promoted = "tables: {promoted: [{attribute: service.name, source: resource}]}"
    config = load_config(_config(tmp_path, promoted), {})
    with pytest.raises(ConfigError, match=r"declares service_name twice; give the new column another name"):
        run(config)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_port_in_use_is_refused_even_where_the_kernel_would_share_it(
    tmp_path: Path, transport: str
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        other = "grpc" if transport == "http" else "http"
        text = f"receive: {{{transport}: {{listen: '{listen}'}}, {other}: {{listen: '127.0.0.1:0'}}}}"
        with pytest.raises(ConfigError, match=f"cannot listen on {listen}: process .* has the port"):
            run(load_config(_config(tmp_path, text), {}))
