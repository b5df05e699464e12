"""Credentials for files, and signatures as other implementations make them."""

from __future__ import annotations

import datetime
import os
import re
import threading
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from frazil.config import ApiKey
from frazil.errors import Forbidden
from frazil.keys import new_key
from frazil.serve.iceberg.sigv4 import (
    LIFETIME_SECONDS,
    SKEW_SECONDS_MAX,
    Credential,
    Credentials,
    SignatureRefused,
    SignedRequest,
    data_secret,
)

NOW = 1_790_000_000


def a_key(name: str = "boss", roles: tuple[str, ...] = ("admin",)) -> ApiKey:
    return ApiKey.model_validate(
        {"name": name, "tenant": "default", "hash": new_key("default")[1], "roles": roles}
    )


KEY = a_key()
SECRET = b"s" * 32


@cache
def credentials(now: int = NOW) -> Credentials:
    return Credentials(SECRET, [KEY], lambda: now)


def signed_request(
    credential: Credential, path: str = "/iceberg/files/a b/x=1/ü.parquet", query: str = "", at: int = NOW
) -> SignedRequest:
    """By botocore, which shares nothing with what is tested."""
    request = AWSRequest("GET", f"http://host:4380{quote(path)}", headers={"Range": "bytes=0-4"})
    request.url += f"?{query}" if query else ""
    pair = BotoCredentials(credential.access_key_id, credential.secret_access_key, credential.session_token)
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC).replace(tzinfo=None)
    signer = S3SigV4Auth(pair, "s3", "eu-north-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda *_: moment)
        signer.add_auth(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    pairs = [tuple(part.partition("=")[::2]) for part in query.split("&") if part]
    return SignedRequest("GET", path, quote(path), pairs, {"host": "host:4380", **headers})


def with_header(request: SignedRequest, **headers: str) -> SignedRequest:
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    return SignedRequest(
        request.method, request.path, request.raw_path, request.query, {**request.headers, **changed}
    )


@given(
    st.text("abcé =+%~!*'()&?#:@$,;/", min_size=1), st.sampled_from(["", "a=1", "b=2&a=1&a=0", "uploads="])
)
def test_what_another_implementation_signs_is_accepted(name: str, query: str) -> None:
    credential = credentials().make("boss")
    path = re.sub("/+", "/", f"/iceberg/files/{name}.parquet")
    credentials().check(signed_request(credential, path, query))


def test_a_request_that_was_changed_after_signing_is_refused() -> None:
    good = signed_request(credentials().make("boss"))
    credentials().check(good)
    authorization = good.headers["authorization"]
    flipped = authorization[:-1] + ("0" if authorization[-1] != "0" else "1")
    bad = {
        "another path": SignedRequest(
            "GET", "/iceberg/files/b", "/iceberg/files/b", good.query, good.headers
        ),
        "another method": SignedRequest("HEAD", good.path, good.raw_path, good.query, good.headers),
        "another query": SignedRequest("GET", good.path, good.raw_path, [("a", "b")], good.headers),
        "another host": with_header(good, host="other:4380"),
        "another signature": with_header(good, authorization=flipped),
        "another payload": with_header(good, x_amz_content_sha256="UNSIGNED-PAYLOAD"),
        "another token": with_header(good, x_amz_security_token="x"),
    }
    for what, request in bad.items():
        with pytest.raises(SignatureRefused) as refused:
            credentials().check(request)
        assert refused.value.code == "SignatureDoesNotMatch", what


def test_a_request_that_is_not_signed_as_it_must_be_is_refused() -> None:
    good = signed_request(credentials().make("boss"))
    authorization = good.headers["authorization"]
    bad = {
        "none": with_header(good, authorization=""),
        "a bearer": with_header(good, authorization="Bearer fz_x"),
        "host not signed": with_header(good, authorization=authorization.replace("host;", "")),
        "an x-amz header not signed": with_header(good, x_amz_more="x"),
        "another day": with_header(good, x_amz_date="20200101T000000Z"),
        "no time": with_header(good, x_amz_date=good.headers["x-amz-date"][:8] + "T996199Z"),
        "no payload hash": with_header(good, x_amz_content_sha256=""),
    }
    for what, request in bad.items():
        with pytest.raises(SignatureRefused) as refused:
            credentials().check(request)
        assert refused.value.code == "AccessDenied", what


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (NOW - SKEW_SECONDS_MAX, None),
        (NOW + SKEW_SECONDS_MAX, None),
        (NOW - SKEW_SECONDS_MAX - 1, "RequestTimeTooSkewed"),
        (NOW + SKEW_SECONDS_MAX + 1, "RequestTimeTooSkewed"),
    ],
)
def test_a_signature_is_good_for_a_quarter_of_an_hour(at: int, code: str | None) -> None:
    request = signed_request(credentials().make("boss"), at=at)
    if code is None:
        credentials().check(request)
        return
    with pytest.raises(SignatureRefused) as refused:
        credentials().check(request)
    assert refused.value.code == code


def refusal(checker: Credentials, request: SignedRequest) -> str:
    with pytest.raises(SignatureRefused) as refused:
        checker.check(request)
    return refused.value.code


def test_a_credential_ends_with_its_time_its_key_and_its_secret() -> None:
    credential = credentials().make("boss")
    later = NOW + LIFETIME_SECONDS + 1
    assert refusal(credentials(later), signed_request(credential, at=later)) == "ExpiredToken"
    request = signed_request(credential)
    for keys in ([a_key()], [], [KEY.model_copy(update={"roles": frozenset({"read"})})]):
        assert refusal(Credentials(SECRET, keys, lambda: NOW), request) == "InvalidAccessKeyId"
    other = Credentials(b"t" * 32, [KEY], lambda: NOW)
    assert refusal(other, request) == "SignatureDoesNotMatch"
    forged = Credential(
        credential.access_key_id.replace(str(credential.expires_unix), str(later * 2)),
        credential.secret_access_key,
        credential.session_token,
        later * 2,
    )
    assert refusal(credentials(), signed_request(forged)) == "SignatureDoesNotMatch"


def test_only_admins_get_credentials_and_anyone_only_while_there_are_no_keys() -> None:
    some = Credentials(SECRET, [KEY, a_key("reader", ("read",))], lambda: NOW)
    for name in ("reader", "nobody", ""):
        with pytest.raises(Forbidden):
            some.make(name)
    nobody = Credentials(SECRET, [], lambda: NOW)
    request = signed_request(nobody.make(""))
    nobody.check(request)
    assert refusal(some, request) == "InvalidAccessKeyId"


def test_every_process_of_a_data_folder_finds_the_same_secret(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(data_secret(tmp_path / "data" / "secret")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1
    assert len(found) == 8
    assert os.listdir(tmp_path / "data") == ["secret"]
    assert (tmp_path / "data" / "secret").stat().st_mode & 0o777 == 0o600
