"""The whole tree of exceptions.

    HoldfastError
        ├── UsageError            the call was wrong; nothing happened
        ├── Conflict              another process was first
        │   └── LeaseLost         the chunk belongs to another grant now
        ├── Refused               continuing would be unsafe
        │   ├── DefinitionChanged the pipeline is not the one the batch was opened with
        │   ├── FingerprintChanged  a scan would resume in a different source from the one it began with
        │   ├── PayloadChanged    a known key came with a different payload
        │   ├── SourceChanged     the source of a scan, unfinished or finished, has changed
        │   ├── UndoRefused       more recorded work would be undone than is plausible
        │   ├── DiedAlike         all items so far died of the same error; nothing was buried
        │   ├── ChainBroken       the journal does not verify
        │   ├── NotOurs           the file is not a Holdfast store
        │   │   └── Damaged       it is a store, but its content is not what was written
        │   └── SchemaTooNew      the store was written by a newer Holdfast
        ├── StoreError            the store could not do it
        │   ├── StoreUnavailable  try again later; nothing was written
        │   │   └── StoreUnusable an operator must act first: credentials, permissions, a missing bucket
        │   └── CommitUnknown     the reply was lost; look up the commit before deciding
        ├── ResourceError         a resource of the handlers could not be opened; no item was charged for it
        ├── SinkError             an output is missing, or is not the one that was recorded
        │   └── Superseded        a newer batch has taken the name of its file
        ├── Incomplete            raised by `report.raise_unless_complete()`
        │   └── NotConverged      every partition of a scan is done, but combining their results failed
        └── Signal                raised by a handler to report how an item went
            ├── Skip              the item needs no work
            ├── Defer             not now; no attempt is counted
            ├── Transient         may work next time
            ├── Permanent         will never work
            └── Bad               an output does not hold, and why: returned or raised by a verifier

        KeyboardInterrupt         (Python's own)
        └── Interrupted           Ctrl-C ended a run, after items in flight reached their checkpoints

Every message says what happened, to which id, and what to do next.
"""

from typing import Any


class HoldfastError(Exception):
    """The root of everything Holdfast raises. Every error can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[HoldfastError], args: tuple[Any, ...], facts: dict[str, Any]) -> HoldfastError:
    """Restore an error as it was: the arguments of its class differ from the attributes it keeps."""
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
    """A scan would resume in a different source from the one it began with."""


class PayloadChanged(Refused):
    """A known key came with a different payload."""


class SourceChanged(Refused):
    """The source of a scan, unfinished or finished, has changed since the scan began."""


class UndoRefused(Refused):
    """More recorded work would be undone than is plausible."""


class DiedAlike(Refused):
    """All items tried so far died of the same error, and none has succeeded; nothing was buried."""


class ChainBroken(Refused):
    """The journal does not verify."""


class NotOurs(Refused):
    """The file is not a Holdfast store."""


class Damaged(NotOurs):
    """The file does not contain what was written to it, or can no longer be read."""


class SchemaTooNew(Refused):
    """The store was written by a newer Holdfast."""


class StoreError(HoldfastError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store did not answer; nothing was written."""


class StoreUnusable(StoreUnavailable):
    """The store will not answer until an operator acts: credentials, permissions, a missing bucket."""


class CommitUnknown(StoreError):
    """The reply to a commit was lost; look it up by its id before deciding."""


class ResourceError(HoldfastError):
    """A resource could not be opened; no item was started without it."""


class SinkError(HoldfastError):
    """An output is missing, or is not the one that was recorded."""


class Superseded(SinkError):
    """A newer batch has taken the name of the output's file."""


class Incomplete(HoldfastError):
    """The batch is not complete; `report` names what is missing."""

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class NotConverged(Incomplete):
    """Every partition of a scan is done, but its `converge` failed; the next run calls it again."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run at its checkpoints; `report` is the report that `run()` would have returned."""

    def __init__(self, message: str = "", report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class Signal(HoldfastError):
    """The base of the exceptions with which a handler reports how an item went."""


class Skip(Signal):
    """The item needs no work. `raise Skip("blank page")`"""


class Defer(Signal):
    """Not now: try again after some seconds, without counting an attempt. `raise Defer(30)`"""

    def __init__(self, seconds: float, why: str = "") -> None:
        if not (0 <= seconds < 366 * 86_400):
            raise UsageError(f"Defer({seconds!r}): pass the seconds to wait, from 0 to a year")
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
"""The extra of Holdfast that installs each library."""


def how_to_get(library: str) -> str:
    """Return the command that installs a library. Holdfast is installed from a clone, and so are its extras."""
    return f'pip install ".[{EXTRAS[library]}]" in the clone of Holdfast installs it'


def missing_extra(what: str, library: str) -> UsageError:
    """Return the error for a feature whose library is not installed."""
    return UsageError(f"{what} {library}, which is not installed here: {how_to_get(library)}")


for _kind in [each for each in vars().values() if isinstance(each, type) and issubclass(each, BaseException)]:
    if _kind is not Signal:
        _kind.__module__ = "holdfast"  # a traceback shows the name that a user can import
