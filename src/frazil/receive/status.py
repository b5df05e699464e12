"""Maps errors to responses of HTTP and gRPC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import grpc
import orjson
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from frazil.errors import (
    ClockSkewed,
    Forbidden,
    Overloaded,
    RequestInvalid,
    RequestTooLarge,
    StoreUnavailable,
    Transient,
    Unauthenticated,
)

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


@dataclass(frozen=True)
class Refusal:
    """The response to a refused request. `reason` is the metric's label `outcome`."""

    http: int
    grpc: grpc.StatusCode
    reason: str
    message: str
    retry_after_seconds: int | None = None

    @property
    def status(self) -> Status:
        status = Status(code=self.grpc.value[0], message=self.message)
        if self.retry_after_seconds is not None:
            info = AnyMessage()
            info.Pack(RetryInfo(retry_delay=Duration(seconds=self.retry_after_seconds)))
            status.details.append(info)
        return status

    def body(self, content_type: str) -> bytes:
        """Returns a google.rpc.Status in the request's encoding."""
        if content_type == PROTOBUF:
            return bytes(self.status.SerializeToString())
        return orjson.dumps({"code": self.grpc.value[0], "message": self.message})


def refusal(error: Exception) -> Refusal:
    """Returns the response to `error`. Transient errors and bugs are retryable."""
    message = str(error)
    delay = max(1, math.ceil(error.retry_after_seconds)) if isinstance(error, Transient) else None
    match error:
        case Overloaded():
            return Refusal(429, grpc.StatusCode.RESOURCE_EXHAUSTED, error.bound, message, delay)
        case ClockSkewed():
            return Refusal(503, grpc.StatusCode.UNAVAILABLE, "clock", message, delay)
        case StoreUnavailable():
            return Refusal(503, grpc.StatusCode.UNAVAILABLE, "store", message, delay)
        case RequestTooLarge():
            return Refusal(413, grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large", message)
        case RequestInvalid():
            return Refusal(400, grpc.StatusCode.INVALID_ARGUMENT, "invalid", message)
        case Unauthenticated():
            return Refusal(401, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", message)
        case Forbidden():
            return Refusal(403, grpc.StatusCode.PERMISSION_DENIED, "forbidden", message)
        case _:
            return Refusal(503, grpc.StatusCode.UNAVAILABLE, "internal", "internal error; retry later", 1)


NOT_FOUND = Refusal(
    404,
    grpc.StatusCode.NOT_FOUND,
    "not_found",
    "no such path; send OTLP to /v1/logs, /v1/traces and /v1/metrics, or to the configured paths",
)
METHOD_NOT_ALLOWED = Refusal(405, grpc.StatusCode.UNIMPLEMENTED, "method", "only POST is allowed")
UNSUPPORTED_TYPE = Refusal(
    415, grpc.StatusCode.INVALID_ARGUMENT, "content_type", f"the content type must be {PROTOBUF} or {JSON}"
)
UNSUPPORTED_ENCODING = Refusal(
    415,
    grpc.StatusCode.INVALID_ARGUMENT,
    "content_encoding",
    "the content encoding must be gzip, zstd, deflate or identity",
)
TIMED_OUT = Refusal(408, grpc.StatusCode.DEADLINE_EXCEEDED, "slow_body", "the body arrived too slowly")
DISCONNECTED = Refusal(400, grpc.StatusCode.INVALID_ARGUMENT, "disconnected", "the body is incomplete")
