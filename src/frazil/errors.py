"""Every error that frazil raises on purpose.

    FrazilError
    ├── Transient              a retry may succeed: nothing was lost, nothing was stored
    │   ├── Overloaded         a bound is reached (memory, a tenant's rate); carries the delay to wait
    │   ├── StoreUnavailable   the store cannot be written or read now (disk full, network, timeout)
    │   │   └── DeleteRefused  the store refused to delete some of many objects; it deleted the others
    │   ├── ClockSkewed        this machine's clock is far from the store's
    │   ├── CatalogUnavailable the catalog does not respond, or its response was lost
    │   ├── JobFailed          a Spark job failed; nothing of it was committed
    │   ├── Stopped            this process is stopping and did not start the work
    │   ├── Fenced             another process moved a table's position first: read it again
    │   └── Conflict           another process replaced files that were to be replaced: choose files again
    └── Permanent              trying again changes nothing
        ├── ConfigError        an invalid configuration; names file, line and a suggestion
        ├── RequestInvalid     a request that cannot be decoded
        ├── RequestTooLarge    a request over a size bound
        ├── QueryInvalid       SQL that cannot run; names the place, and perhaps a suggestion
        ├── QueryRefused       SQL that would leave the sandbox
        ├── LimitReached       a query that exceeded a limit; names it
        ├── Unauthenticated    no valid API key
        ├── Forbidden          a valid API key that may not do this
        ├── StoreUnsafe        a store whose conditional writes do not work
        ├── SegmentCorrupt     a WAL segment whose content differs from what was written
        ├── SegmentUnknown     a WAL segment of a format version that this release does not know
        ├── DataLost           data after a table's position is missing, or the table was rolled back
        └── Refused            a command that must not run with these options; names the options that allow it

Errors carry facts as attributes, and their text says what to do next.
"""

from __future__ import annotations

from typing import Self


class FrazilError(Exception):
    """The base class of all errors that frazil raises on purpose."""

    def again(self) -> Self:
        """Return a copy to raise again. One object raised twice would keep the frames of both alive."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class Transient(FrazilError):
    """An error that a retry may resolve: nothing was lost, and nothing was stored."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Overloaded(Transient):
    """A limit is reached. `bound` names it, as in the metric of refusals."""

    def __init__(self, message: str, *, bound: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.bound = bound


class StoreUnavailable(Transient):
    """The store cannot make data durable now, or cannot be read."""


class DeleteRefused(StoreUnavailable):
    """The store refused to delete some objects of many, and deleted all the others."""


class ClockSkewed(Transient):
    """This machine's clock differs too much from the store's clock to set the received time of data."""


class CatalogUnavailable(Transient):
    """The catalog does not respond, or its response was lost."""


class JobFailed(Transient):
    """A Spark job failed. Nothing of it was committed."""


class Stopped(Transient):
    """This process is stopping and did not start the work. The next process will start it."""


class Fenced(Transient):
    """Another process moved the position of `table` first. Files for the old position are discarded."""

    def __init__(self, table: str) -> None:
        super().__init__(f"another process has moved the position of {table}")
        self.table = table


class Conflict(Transient):
    """Files to replace are no longer part of `table`. Nothing was changed."""

    def __init__(self, table: str, message: str) -> None:
        super().__init__(f"{table}: {message}")
        self.table = table


class Permanent(FrazilError):
    """An error that a retry cannot resolve."""


class ConfigError(Permanent):
    """The configuration is invalid. The message names the place and a fix."""


class SetupFault(ConfigError):
    """This machine cannot run the configuration. Roles raise it at the start; `frazil doctor` shows it."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}: {fix}")
        self.found, self.fix = found, fix


class RequestInvalid(Permanent):
    """A request that cannot be decoded. `parameter` is the query parameter that is invalid, if it is one."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class RequestTooLarge(Permanent):
    """A request over a size bound."""

    def __init__(self, message: str, *, bytes_max: int) -> None:
        super().__init__(message)
        self.bytes_max = bytes_max


class QueryInvalid(Permanent):
    """SQL that cannot be parsed, bound or run. `position` is where in the SQL, in characters, if known."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class QueryRefused(Permanent):
    """SQL that accesses something other than the tables: a file, the network, a setting."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class LimitReached(Permanent):
    """A query exceeded a limit. `limit` is its configuration key."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class Unauthenticated(Permanent):
    """The request has no valid API key."""


class Forbidden(Permanent):
    """The API key is valid but lacks the permission for this request."""


class StoreUnsafe(Permanent):
    """The store's conditional writes do not work: two writers of one name could both succeed."""


class SegmentCorrupt(Permanent):
    """A segment whose content differs from what its writer wrote."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is corrupt: {reason}")
        self.path = path
        self.reason = reason


class SegmentUnknown(Permanent):
    """A segment of a format version that this release does not know."""

    def __init__(self, path: str, version: str) -> None:
        super().__init__(
            f"{path} has format version {version}, which this release cannot read; upgrade frazil"
        )
        self.path = path
        self.version = version


class DataLost(Permanent):
    """Data after the position of `table` is missing. Landing of the table stops until an operator acts."""

    def __init__(self, table: str, message: str) -> None:
        super().__init__(f"{table}: {message}")
        self.table = table


class Refused(Permanent):
    """A command that must not run with the given options. Nothing was changed."""


_REASON_CHARACTERS_MAX = 600


def reason_of(error: BaseException) -> str:
    """Return the error as one line. Errors of other packages get their type's name; long ones are cut."""
    text = str(error) if isinstance(error, FrazilError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_REASON_CHARACTERS_MAX]
