"""An HTTP session whose pending requests can be aborted.

`requests` cannot abort a request that waits for a response. Without this, a run against a receiver that hangs
would end only after the exporter's timeout of ten seconds. The gRPC exporter closes its channel instead.
"""

from __future__ import annotations

import socket
from threading import Lock
from typing import Any
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class _Sockets:
    def __init__(self) -> None:
        self._lock = Lock()
        self._open: WeakSet[socket.socket] = WeakSet()
        self._aborted = False

    def add(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._aborted:
                connection.close()
                raise ConnectionAbortedError("the session was aborted")
            if connection.sock is not None:
                self._open.add(connection.sock)

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            for open_socket in self._open:
                try:
                    open_socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed already


class AbortableSession(requests.Session):
    """A session with `abort`: pending and later requests fail immediately."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets = _Sockets()
        adapter = HTTPAdapter()
        adapter.poolmanager.pool_classes_by_scheme = {
            "http": _pool_class(HTTPConnectionPool, self._sockets),
            "https": _pool_class(HTTPSConnectionPool, self._sockets),
        }
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def abort(self) -> None:
        self._sockets.abort()


def _pool_class(base: Any, sockets: _Sockets) -> Any:
    class Connection(base.ConnectionCls):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            sockets.add(self)

    return type(base.__name__, (base,), {"ConnectionCls": Connection})
