"""Every error that frazil raises on purpose.

    FrazilError
    ├── Transient              try again later: nothing was lost, nothing was kept
    │   ├── Overloaded         a bound is reached (memory, a tenant's rate); carries the delay to wait
    │   ├── StoreUnavailable   the store cannot be written or read now (disk full, network, time-out)
    │   │   └── DeleteRefused  the store refused to delete some of many objects; it deleted the others
    │   ├── ClockSkewed        this machine's clock is far from the store's
    │   ├── CatalogUnavailable the catalog does not answer, or its answer was lost
    │   ├── JobFailed          a Spark job failed; nothing of it was committed
    │   ├── Stopped            this process was told to stop before the work began
    │   ├── Fenced             another process moved a table's position first: read it again
    │   └── Conflict           another process replaced files that were to be replaced: choose anew
    └── Permanent              trying again changes nothing
        ├── ConfigError        the configuration, with file, line and a suggestion
        ├── RequestInvalid     a request that cannot be decoded
        ├── RequestTooLarge    a request over a size bound
        ├── QueryInvalid       SQL that cannot be answered; says where, and what may have been meant
        ├── QueryRefused       SQL that would leave the sandbox
        ├── LimitReached       a query that hit a limit; names it
        ├── Unauthenticated    no valid API key
        ├── Forbidden          a valid API key that may not do this
        ├── StoreUnsafe        a store whose conditional writes do not hold
        ├── SegmentCorrupt     a WAL segment that does not hold what its writer wrote
        ├── SegmentUnknown     a WAL segment of a format version that this release does not know
        ├── DataLost           what a table's position points at is gone, or the table was rolled back
        └── Refused            a command that must not be done as it was given; says what would let it

Errors carry facts as attributes, and their text says what to do next.
"""

from __future__ import annotations

from typing import Self


class FrazilError(Exception):
    """Root of the tree."""

    def again(self) -> Self:
        """The same error to raise once more. One object raised twice keeps the frames of both alive."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class Transient(FrazilError):
    """Try again later: nothing was lost, nothing was kept."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Overloaded(Transient):
    """A bound is reached. `bound` names it, as in the metric of refusals."""

    def __init__(self, message: str, *, bound: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.bound = bound


class StoreUnavailable(Transient):
    """The store cannot make data durable now, or cannot be read."""


class DeleteRefused(StoreUnavailable):
    """The store refused to delete some objects of many, and deleted all the others."""


class ClockSkewed(Transient):
    """This machine's clock is too far from the store's to stamp data with it."""


class CatalogUnavailable(Transient):
    """The catalog does not answer, or its answer was lost."""


class JobFailed(Transient):
    """A Spark job failed. Nothing of it was committed."""


class Stopped(Transient):
    """This process was told to stop before the work began; whoever comes next does it."""


class Fenced(Transient):
    """Another process moved the position of `table` first. Whatever was made for the old one is discarded."""

    def __init__(self, table: str) -> None:
        super().__init__(f"another process has moved the position of {table}")
        self.table = table


class Conflict(Transient):
    """Files of `table` that were to be replaced are no longer part of it. Nothing was changed."""

    def __init__(self, table: str, message: str) -> None:
        super().__init__(f"{table}: {message}")
        self.table = table


class Permanent(FrazilError):
    """Trying again changes nothing."""


class ConfigError(Permanent):
    """The configuration cannot be used. The text names the place and what to write instead."""


class SetupFault(ConfigError):
    """This machine does not fit the configuration. A start raises it; `frazil doctor` shows it."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}: {fix}")
        self.found, self.fix = found, fix


class RequestInvalid(Permanent):
    """A request that cannot be decoded."""


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
    """SQL that asks for something outside of the tables: a file, the network, a setting."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class LimitReached(Permanent):
    """A query hit a limit of its own. `limit` is the configuration's key."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class Unauthenticated(Permanent):
    """No valid API key came with the request."""


class Forbidden(Permanent):
    """The API key is valid but may not do this."""


class StoreUnsafe(Permanent):
    """The store's conditional writes do not hold, so two writers could both believe that they won."""


class SegmentCorrupt(Permanent):
    """A segment that does not hold what its writer wrote."""

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
    """What the position of `table` points at is gone. Landing of that table stops until someone decides."""

    def __init__(self, table: str, message: str) -> None:
        super().__init__(f"{table}: {message}")
        self.table = table


class Refused(Permanent):
    """A command of an operator that must not be done as it was given. Nothing was changed."""


_REASON_CHARACTERS_MAX = 600


def reason_of(error: BaseException) -> str:
    """Return the error as one line. Errors of other packages get their type's name; long ones are cut."""
    text = str(error) if isinstance(error, FrazilError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_REASON_CHARACTERS_MAX]
