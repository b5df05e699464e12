"""Whether certificate files can be served as they are now: a renewal replaces them one by one."""

from __future__ import annotations

import ssl

from frazil.config import TlsConfig


def is_usable(tls: TlsConfig) -> bool:
    """Certificate, key and client authorities can be read, and key and certificate belong together."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return False
    return True
