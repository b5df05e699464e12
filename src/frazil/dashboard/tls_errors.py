"""Why the dashboard and an API do not come together over TLS, and what to set."""

from __future__ import annotations

import ssl
from pathlib import Path

from frazil.tls import unusable_authorities

_EXPIRED = 10
_OTHER_NAME = {62, 64}
"""OpenSSL's numbers for an expired certificate, and for one of another host or address."""
_WANTS_OURS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
}


def why_distrusted(error: Exception, ca_file: Path | None, own_certificate: Path | None) -> str:
    """`error`: of `ssl`. `own_certificate`: what alone is trusted, if given."""
    if own_certificate is None and ca_file is not None and (why := unusable_authorities(ca_file)) is not None:
        return f"dashboard.api_ca_file: {ca_file} {why}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_verified(error, own_certificate)
    reason = getattr(error, "reason", None) or str(error)
    if reason in _WANTS_OURS:
        return (
            "the API requires a client certificate (serve.tls.client_ca_file), and the dashboard has none: "
            "set dashboard.api_url to an API that does not require one"
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the API does not use TLS: set dashboard.api_url to its http:// address"
    return f"{reason.replace('_', ' ').lower()}: check dashboard.api_url and dashboard.api_ca_file"


def _why_not_verified(error: ssl.SSLCertVerificationError, own_certificate: Path | None) -> str:
    if error.verify_code == _EXPIRED:
        return "the API's certificate has expired: renew it; a running API reloads it automatically"
    if own_certificate is not None:
        return (
            f"the API presents a certificate other than {own_certificate} (serve.tls.cert_file): "
            "restart the API, or set dashboard.api_url and dashboard.api_ca_file for another API"
        )
    if error.verify_code in _OTHER_NAME:
        return (
            f"the API's certificate is for another host name ({error.verify_message.rstrip('.')}): "
            "set dashboard.api_url to a host name in the certificate"
        )
    return (
        f"the API's certificate is not signed by a trusted CA ({error.verify_message}): "
        "set dashboard.api_ca_file to the CA certificate that signed it"
    )
