"""Java trusts what Python trusts: SSL_CERT_FILE, which Java does not know, made into a key store for it.

Else a private authority (of a company's proxy, an S3 or a catalog) would be good enough for all of frazil
except Spark.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frazil.pipeline.java import cache_folder

_PASSWORD = "changeit"  # noqa: S105  Java's own default: it guards nothing, certificates are public.


def trust_options() -> list[str]:
    """JVM options that make Java trust what SSL_CERT_FILE holds. None if the variable is not set."""
    file = os.environ.get("SSL_CERT_FILE")
    if not file or not Path(file).is_file():
        return []
    certificates = ssl.create_default_context(cafile=file).get_ca_certs(binary_form=True)
    store = key_store(certificates)
    path = cache_folder() / f"trusted-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
            unfinished.write(store)
        os.replace(unfinished.name, path)
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS"]


def key_store(certificates: Sequence[bytes]) -> bytes:
    """DER certificates as a key store in Java's oldest format, which every Java reads."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        trusted, created_at_milliseconds = 2, 0
        body += struct.pack(">I", trusted) + _text(str(number)) + struct.pack(">q", created_at_milliseconds)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324
    return body + digest.digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
