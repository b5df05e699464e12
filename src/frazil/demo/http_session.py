"""An HTTP session whose requests can be cut short.

`requests` has no way to end a request that waits for an answer, so a run against a receiver that hangs could
not end before the exporter's time-out of ten seconds. The gRPC exporter needs no such help: it closes its
channel.
"""

from __future__ import annotations

import socket
from threading import Lock
from typing import Any
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class _Sockets:
    """The sockets of one session."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: WeakSet[socket.socket] = WeakSet()
        self._cut = False

    def add(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._cut:
                connection.close()
                raise ConnectionAbortedError("the session was cut")
            if connection.sock is not None:
                self._open.add(connection.sock)

    def cut(self) -> None:
        with self._lock:
            self._cut = True
            for open_socket in self._open:
                try:
                    open_socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed already


class CuttableSession(requests.Session):
    """As any other session, until it is cut: then what waits fails at once, and so does what follows."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets = _Sockets()
        adapter = HTTPAdapter()
        adapter.poolmanager.pool_classes_by_scheme = _pools(self._sockets)
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def cut(self) -> None:
        self._sockets.cut()


def _pools(sockets: _Sockets) -> dict[str, type[HTTPConnectionPool]]:
    class Connection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self)

    class SecureConnection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self)

    class Pool(HTTPConnectionPool):
        ConnectionCls: Any = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls: Any = SecureConnection

    return {"http": Pool, "https": SecurePool}
