"""Batch work that survives anything, and can prove it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.core.course import BatchState, StopReason
    from holdfast.core.cursor import Cursor
    from holdfast.core.envelope import Envelope
    from holdfast.core.errors import (
        Bad,
        ChainBroken,
        CommitUnknown,
        Conflict,
        Damaged,
        Defer,
        DefinitionChanged,
        DiedAlike,
        FingerprintChanged,
        HoldfastError,
        Incomplete,
        Interrupted,
        LeaseLost,
        NotConverged,
        NotOurs,
        PayloadChanged,
        Permanent,
        Refused,
        ResourceError,
        SchemaTooNew,
        SinkError,
        Skip,
        SourceChanged,
        StoreError,
        StoreUnavailable,
        StoreUnusable,
        Superseded,
        Transient,
        UndoRefused,
        UsageError,
    )  # fmt: skip
    from holdfast.core.model import State
    from holdfast.core.verify import Finding, Reconciliation
    from holdfast.runtime.acts import ActResult, BatchChange, Preview
    from holdfast.runtime.define.context import Context, DeadLetter, Segment
    from holdfast.runtime.define.policy import Breaker, Budget, Retry
    from holdfast.runtime.define.stage import Stage
    from holdfast.runtime.events import Undelivered
    from holdfast.runtime.functions import lambda_handler
    from holdfast.runtime.handles.batch import BatchHandle
    from holdfast.runtime.handles.cursors import CursorHandle
    from holdfast.runtime.handles.doctor import doctor, fault_points
    from holdfast.runtime.handles.imports import import_checkpoints, import_outputs, import_pages, import_poller
    from holdfast.runtime.handles.items import DeadLetters, FoundOrphans, ItemHandle, ItemRevision
    from holdfast.runtime.handles.store import NumberedEvent, StoreHandle
    from holdfast.runtime.handles.store import open as open  # noqa: A004 - hf.open
    from holdfast.runtime.message import Processed
    from holdfast.runtime.pipeline import Pipeline
    from holdfast.runtime.plan import Plan
    from holdfast.runtime.report.report import Report, Result
    from holdfast.runtime.report.statistics import Statistics
    from holdfast.runtime.report.status import Figures, StageFigures, Status
    from holdfast.runtime.report.why import ItemStory
    from holdfast.runtime.scan.scan import Follow, Scan, ScanReport
    from holdfast.runtime.scan.tick import Tick
    from holdfast.runtime.scan.walk import Partition
    from holdfast.runtime.sinks.files import Files
    from holdfast.runtime.sources import (
        Csv,
        File,
        Folder,
        JsonLines,
        Malformed,
        Object,
        Objects,
        Pages,
        Parquet,
        Query,
        Readable,
        Reader,
        Source,
        Span,
        Table,
    )  # fmt: skip

__version__ = "0.1.0"

__all__ = [
    "ActResult", "Bad", "BatchChange", "BatchHandle", "BatchState", "Breaker", "Budget", "ChainBroken",
    "CommitUnknown", "Conflict", "Context", "Csv", "Cursor", "CursorHandle", "Damaged", "DeadLetter", "DeadLetters",
    "Defer", "DefinitionChanged", "DiedAlike", "Envelope", "Figures", "File", "Files", "Finding", "FingerprintChanged",
    "Folder", "Follow", "FoundOrphans", "HoldfastError", "Incomplete", "Interrupted", "ItemHandle", "ItemRevision",
    "ItemStory",
    "JsonLines", "LeaseLost", "Malformed", "NotConverged", "NotOurs", "NumberedEvent", "Object", "Objects", "Pages",
    "Parquet", "Partition",
    "PayloadChanged", "Permanent", "Pipeline", "Plan", "Preview", "Processed", "Query", "Readable", "Reader",
    "Reconciliation", "Refused", "Report", "ResourceError", "Result", "Retry", "Scan", "ScanReport", "SchemaTooNew",
    "Segment", "SinkError", "Skip", "Source", "SourceChanged", "Span", "Stage", "StageFigures", "State", "Statistics",
    "Status", "StopReason", "StoreError", "StoreHandle", "StoreUnavailable", "StoreUnusable", "Superseded", "Table",
    "Tick", "Transient", "Undelivered", "UndoRefused", "UsageError", "doctor", "fault_points", "import_checkpoints",
    "import_outputs", "import_pages", "import_poller", "lambda_handler",
]  # fmt: skip
NAMES = frozenset({*__all__, "open"})
"""All public names; `from holdfast import *` leaves Python's own `open` alone."""

_HOMES = {
    "core.course": ("BatchState", "StopReason"),
    "core.cursor": ("Cursor",),
    "core.envelope": ("Envelope",),
    "core.model": ("State",),
    "core.verify": ("Finding", "Reconciliation"),
    "runtime.acts": ("ActResult", "BatchChange", "Preview"),
    "runtime.define.context": ("Context", "DeadLetter", "Segment"),
    "runtime.define.policy": ("Breaker", "Budget", "Retry"),
    "runtime.define.stage": ("Stage",),
    "runtime.events": ("Undelivered",),
    "runtime.functions": ("lambda_handler",),
    "runtime.handles.batch": ("BatchHandle",),
    "runtime.handles.cursors": ("CursorHandle",),
    "runtime.handles.doctor": ("doctor", "fault_points"),
    "runtime.handles.imports": ("import_checkpoints", "import_outputs", "import_pages", "import_poller"),
    "runtime.handles.items": ("DeadLetters", "FoundOrphans", "ItemHandle", "ItemRevision"),
    "runtime.handles.store": ("NumberedEvent", "StoreHandle", "open"),
    "runtime.message": ("Processed",),
    "runtime.plan": ("Plan",),
    "runtime.pipeline": ("Pipeline",),
    "runtime.report.report": ("Report", "Result"),
    "runtime.report.statistics": ("Statistics",),
    "runtime.report.status": ("Figures", "StageFigures", "Status"),
    "runtime.report.why": ("ItemStory",),
    "runtime.scan.scan": ("Follow", "Scan", "ScanReport"),
    "runtime.scan.tick": ("Tick",),
    "runtime.scan.walk": ("Partition",),
    "runtime.sinks.files": ("Files",),
    "runtime.sources": (
        *("Csv", "File", "Folder", "JsonLines", "Malformed", "Object", "Objects", "Pages", "Parquet", "Query"),
        *("Readable", "Reader", "Source", "Span", "Table"),
    ),
}
"""The modules of the public names; `core.errors` has the others. A name is loaded when it is first used."""

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above does not exist

    def __getattr__(name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "core.errors")
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        if getattr(value, "__module__", "").startswith(__name__):  # what is public is told of as it is imported
            value.__module__ = __name__
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *NAMES})
