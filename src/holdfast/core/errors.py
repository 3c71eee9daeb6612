"""The whole tree of exceptions.

    HoldfastError
    ├── UsageError            you called us wrongly; nothing happened
    ├── Conflict              someone was first
    │   └── LeaseLost         the chunk belongs to another grant now
    ├── Refused               continuing would be unsafe
    │   ├── DefinitionChanged the pipeline is not the one the batch was opened with
    │   ├── FingerprintChanged  a scan would resume in another source than it was begun with
    │   ├── PayloadChanged    a known key came with another payload
    │   ├── SourceChanged     what a scan reads, or has read, is not what it was
    │   ├── UndoRefused       more of what is recorded would be undone than is likely to be meant
    │   ├── DiedAlike         all items so far died of the same error; nothing was buried
    │   ├── ChainBroken       the journal does not verify
    │   ├── NotOurs           the file is not a Holdfast store
    │   │   └── Damaged       it is one, and it does not hold what was written into it
    │   └── SchemaTooNew      the store was written by a newer Holdfast
    ├── StoreError            the store could not do it
    │   ├── StoreUnavailable  try again later; nothing was written
    │   │   └── StoreUnusable a person has to act first: credentials, permissions, a bucket that is not there
    │   └── CommitUnknown     the reply was lost; look the commit up before judging
    ├── ResourceError         what handlers are handed by name could not be opened; no item was charged with it
    ├── SinkError             an output is missing, or is not the one that was recorded
    │   └── Superseded        a newer batch has taken the name of its file
    ├── Incomplete            raised by `report.raise_unless_complete()`
    │   └── NotConverged      every range of a scan is done, and what brings their results together failed
    └── Signal                what a handler raises to say how an item went
        ├── Skip              not for us, and that is fine
        ├── Defer             not now; costs no attempt
        ├── Transient         may work next time
        ├── Permanent         will never work
        └── Bad               an output does not hold, and why: returned or raised by a verifier

    KeyboardInterrupt         (Python's own)
    └── Interrupted           Ctrl-C ended a run, after what was in flight came to its checkpoint

Every message says what happened, to which id, and what to do next.
"""

from typing import Any


class HoldfastError(Exception):
    """The root of everything Holdfast raises. Every error can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[HoldfastError], args: tuple[Any, ...], facts: dict[str, Any]) -> HoldfastError:
    """Make an error again as it was: what its class is called with is not what it keeps."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class UsageError(HoldfastError):
    """The call was wrong; nothing happened."""


class Conflict(HoldfastError):
    """Another process was first."""


class LeaseLost(Conflict):
    """The chunk has another owner or fence now; work done under the old one is not committed."""


class Refused(HoldfastError):
    """Continuing would be unsafe."""


class DefinitionChanged(Refused):
    """The pipeline is not the one the batch was opened with."""


class FingerprintChanged(Refused):
    """A scan would resume in a source other than the one it began with."""


class PayloadChanged(Refused):
    """A known key came with another payload."""


class SourceChanged(Refused):
    """The source of a scan, unfinished or finished, has changed since the scan began."""


class UndoRefused(Refused):
    """So many outputs would be undone that it is probably a mistake."""


class DiedAlike(Refused):
    """All items that were tried so far died of the same error, and none has succeeded; nothing was buried."""


class ChainBroken(Refused):
    """The journal does not verify."""


class NotOurs(Refused):
    """The file is not a Holdfast store."""


class Damaged(NotOurs):
    """The store does not contain what was written to it, or cannot be read any more."""


class SchemaTooNew(Refused):
    """The store was written by a newer Holdfast."""


class StoreError(HoldfastError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store did not answer; nothing was written."""


class StoreUnusable(StoreUnavailable):
    """The store cannot be used until a person acts: credentials, permissions, a bucket that does not exist."""


class CommitUnknown(StoreError):
    """The reply to a commit was lost; only looking the commit up by its id shows whether it was written."""


class ResourceError(HoldfastError):
    """A resource could not be opened; no item was started without it."""


class SinkError(HoldfastError):
    """An output is missing, or is not the one that was recorded."""


class Superseded(SinkError):
    """A newer batch has taken the name of the output's file."""


class Incomplete(HoldfastError):
    """The batch is not complete; `report` says what is missing."""

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class NotConverged(Incomplete):
    """Every partition of a scan is done, but its `converge` failed; the next run calls it again."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run at its checkpoints; `report` is what `run()` would have returned."""

    def __init__(self, message: str = "", report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class Signal(HoldfastError):
    """What a handler raises to say how an item went."""


class Skip(Signal):
    """The item needs no work. `raise Skip("blank page")`"""


class Defer(Signal):
    """Not now: try again after some seconds, without using an attempt. `raise Defer(30)`"""

    def __init__(self, seconds: float, why: str = "") -> None:
        if not (0 <= seconds < 366 * 86_400):
            raise UsageError(f"Defer({seconds!r}): give the seconds to wait, from 0 to a year")
        super().__init__(why or f"deferred for {seconds:g} s")
        self.seconds = float(seconds)


class Transient(Signal):
    """It may work next time. `raise Transient("rate limited", after=20)`"""

    def __init__(self, message: str = "", *, code: str = "transient", after: float | None = None) -> None:
        super().__init__(message or code)
        self.code = code
        self.after = after


class Permanent(Signal):
    """It will never work. `raise Permanent("no_such_page", "page 12 does not exist")`"""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class Bad(Signal):
    """The output is not valid. A verifier returns or raises it: `return Bad("expected 2 rows, found 1")`"""


EXTRAS = {"obstore": "buckets", "httpx": "http", "pyarrow": "parquet", "SQLAlchemy": "sql"}
"""The library, and the extra of Holdfast that brings it."""


def how_to_get(library: str) -> str:
    """Return what to type. Holdfast is installed from a clone, so its extras are, too."""
    return f'pip install ".[{EXTRAS[library]}]" in the clone of Holdfast brings it'


def missing_extra(what: str, library: str) -> UsageError:
    """Return the refusal of something whose library is not there."""
    return UsageError(f"{what} {library}, which is not installed here: {how_to_get(library)}")


for _kind in [each for each in vars().values() if isinstance(each, type) and issubclass(each, BaseException)]:
    if _kind is not Signal:
        _kind.__module__ = "holdfast"  # a traceback names what a user can import
