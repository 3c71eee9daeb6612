"""A batch, for operators: questions about it, and acts on it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from holdfast.core import canonical
from holdfast.core.course import kind_of, stage_names, to_reopen
from holdfast.core.errors import UsageError
from holdfast.core.limits import UNDO_SHARE
from holdfast.core.model import Batch, Key, Kind, State
from holdfast.core.verify import How, Reconciliation
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor, ActResult, BatchChange, Preview, act, actor_named, check_words
from holdfast.runtime.handles.checks import check_kind
from holdfast.runtime.partitions import Remark, is_partition, remarks
from holdfast.runtime.report import lifecycle, overview, status
from holdfast.runtime.report.lifecycle import Seal
from holdfast.runtime.report.overview import PartitionStatus, ScanOverview
from holdfast.runtime.report.status import ScanFacts, Status
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.handles.cursors import CursorHandle
    from holdfast.runtime.handles.items import DeadLetters, FoundOrphans, ItemHandle
    from holdfast.runtime.operate.audit import Audit
    from holdfast.runtime.operate.copies import CopySummary
    from holdfast.runtime.operate.evidence import EvidenceSummary
    from holdfast.runtime.operate.export import Exported, ExportSummary, Format
    from holdfast.runtime.pipeline import Pipeline
    from holdfast.runtime.plan import Plan
    from holdfast.runtime.report.statistics import Statistics
    from holdfast.runtime.scan.scan import SourceWalk
    from holdfast.runtime.sinks.base import Sink


class BatchHandle:
    """One batch of an open store.

    Every method reads the store again. An act takes a `reason`, which the journal keeps, and an `actor`, by default
    this process. An act on items also takes `dry_run=True`: then it returns an `hf.Preview` and changes nothing;
    otherwise it returns an `hf.ActResult`. An act on the batch as a whole returns an `hf.BatchChange`.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name

    def __repr__(self) -> str:
        return f"<batch {self.name!r} in {self._store.url}>"

    @property
    def _batch(self) -> Batch:
        return lookup.batch_named(self._store, self.name)

    def _check_store(self, program: "Pipeline | SourceWalk") -> None:
        """Refuse a pipeline or scan whose state is in another store: it would answer for a batch of the same name."""
        pipeline: Any = getattr(program, "pipeline", program)
        theirs: Store = pipeline.store
        if theirs is not self._store and _place(theirs.url) != _place(self._store.url):
            raise UsageError(
                f"{program.name!r} keeps its state in {theirs.url}, and this batch is in {self._store.url}: pass "
                "use_store(…) to the pipeline, or open its store"
            )

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> str:
        """The name of the pipeline or scan that it belongs to."""
        return self._batch.pipeline

    @property
    def stages(self) -> list[str]:
        """The names of its stages, in order."""
        return stage_names(self._batch)

    @property
    def is_scan(self) -> bool:
        """Whether it is a scan: its items are partitions of a source."""
        return self.status().kind is Kind.PARTITIONS

    @property
    def is_followed(self) -> bool:
        """Whether it follows its source, and therefore never ends by itself."""
        return overview.is_followed(self._store, self._batch)

    def status(self) -> Status:
        """Return its state in one word, counts that add up, money, owners at work, and a forecast."""
        batch = self._batch
        seen = status.snapshot(self._store, batch)
        return replace(seen, scan=_scan_facts(self._store, batch, seen)) if seen.kind is Kind.PARTITIONS else seen

    def statistics(self) -> "Statistics":
        """Return count, min, p50, mean, p95, max and sum of time, money, tokens and metrics, by stage."""
        from holdfast.runtime.report import statistics

        return statistics.collect(self._store, self._batch)

    def partitions(self) -> list[PartitionStatus]:
        """Return the partitions of a scan, each with rows, rate, cursor and lag; a pipeline has none."""
        batch = self._batch
        return list(overview.glances(self._store, batch)) if _is_scan(self._store, batch) else []

    def overview(self) -> ScanOverview:
        """Return the rows, the rate and the time left of all partitions of a scan together."""
        return overview.overview(self.partitions())

    def remarks(self) -> list[Remark]:
        """Return remarks on totals that may count rows twice or not at all because a person moved a cursor."""
        return remarks(self._store, self._batch)

    def unconverged(self) -> str:
        """Return why a scan whose partitions are done has no result; empty if it has one or needs none."""
        scan = self.status().scan
        return "" if scan is None else scan.unconverged

    def seal_of(self) -> Seal | None:
        """Return who sealed it, when and why; None while it is open."""
        return lifecycle.seal_of(self._store, self._batch)

    def set_back(self) -> str:
        """Return a warning if the store was restored from an older copy after the batch was opened; else an empty
        text."""
        return status.set_back_note(self._store, self._batch)

    def items(self, *, state: State | str | None = None, stage: str | int | None = None) -> "Iterator[ItemHandle]":
        """Yield its items in order: all of them, or those in one state or at one stage."""
        from holdfast.runtime.handles.items import handles_of

        batch = self._batch
        at = None if stage is None else lookup.stage_numbered(batch, stage)
        return handles_of(self._store, batch, state=None if state is None else _state(state), stage=at)

    def item(self, key: Key) -> "ItemHandle":
        """Return the item with that key; `#7` means the item with that number."""
        from holdfast.runtime.handles.items import ItemHandle

        batch = self._batch
        return ItemHandle(self._store, batch, lookup.item_named(self._store, batch, canonical.key_text(key)))

    def dead(self, *keys: Key, code: str | None = None) -> "DeadLetters":
        """Return its dead letters: all of them, those with these keys, or those with one code."""
        from holdfast.runtime.handles.items import DeadLetters

        if keys and code is not None:
            raise UsageError("name dead letters by their keys or by a code, not by both")
        return DeadLetters(self._store, self._batch, keys if keys else None, code)

    def orphans(self, *, limit: int = 50, actor: str = "") -> "FoundOrphans":
        """Return its orphans. Those found for the first time become events."""
        from holdfast.runtime.handles.items import look_for_orphans

        return look_for_orphans(self._store, [self._batch], limit, actor)

    def results(self) -> "Iterator[Exported]":
        """Yield every item that is done, in order, with its stored output."""
        from holdfast.runtime.operate import export

        return export.results(self._store, self._batch)

    def plan(self, pipeline: "Pipeline | SourceWalk", **options: Any) -> "Plan":
        """Return what a run of the pipeline would do with every item, and why, with a forecast. It changes nothing."""
        self._check_store(pipeline)
        return pipeline.plan(batch=self.name, **options)

    def audit(self, *, full: bool = False) -> "Audit":
        """Verify its chains, and the store against them; with `full`, output files as well."""
        from holdfast.runtime.operate import audit

        return audit.verify(self._store, self._batch, full=full)

    def export(
        self, target: str | Path | IO[bytes], *, format: "Format | None" = None, state: State | str = State.DONE,  # noqa: A002 - as the command calls it
        raw: bool = False,
    ) -> "ExportSummary":  # fmt: skip
        """Write its results, or its items in another state, to a file of JSON lines, CSV or Parquet."""
        from holdfast.runtime.operate import export

        place = Path(target) if isinstance(target, str) else target
        return export.export(self._store, self._batch, place, form=format, state=_state(state), raw=raw)

    def evidence(self, path: str | Path | None = None, *, redact: bool = False) -> "EvidenceSummary":
        """Write an archive, without payloads, that proves what happened to every item, with a script that checks it.
        With `redact`, it has no keys, error messages, reasons or other words either."""
        from holdfast.runtime.operate import evidence
        from holdfast.runtime.report.reconcile import reconcile
        from holdfast.runtime.sinks.names import safe_name

        batch = self._batch
        place = Path(f"{safe_name(batch.name)}-evidence{evidence.SUFFIX}") if path is None else Path(path)
        if place.suffix != evidence.SUFFIX:
            raise UsageError(f"{place}: evidence is an archive, so its name must end in {evidence.SUFFIX}")
        found = reconcile(self._store, batch).as_dict()
        made_by = f"holdfast {version('holdfast')}"
        return evidence.write(self._store, batch, place, found, made_by=made_by, redact=redact)

    def copy(self, path: str | Path | None = None) -> "CopySummary":
        """Write everything that the store holds of the batch to one file, to open it in another store with `open_copy`.
        No process may be working on it. The file has every payload; files of a sink are not part of it."""
        from holdfast.runtime.operate import copies
        from holdfast.runtime.sinks.names import safe_name

        place = Path(f"{safe_name(self.name)}{copies.SUFFIX}") if path is None else Path(path)
        return copies.write(self._store, self._batch, place)

    @property
    def cursors(self) -> "CursorHandle":
        """The cursors of a scan."""
        from holdfast.runtime.handles.cursors import CursorHandle

        return CursorHandle(self._store, self.name)

    # -- expected, recorded, observed ---------------------------------------------------------------------------------

    def reconcile(self, *, source: "Pipeline | None" = None, full: bool = False, actor: str = "") -> Reconciliation:
        """Compare what it should contain, what is recorded, and what is really there. If everything is settled, its end
        is recorded. With `source`, a pipeline, the keys of that pipeline's source are compared as well."""
        batch = self._batch
        look = partial(self._look, batch, source, full)
        return lifecycle.conclude_end(self._store, batch, look, actor=actor_named(actor))

    def _look(self, batch: Batch, source: "Pipeline | None", full: bool) -> Reconciliation:
        from holdfast.runtime.report.reconcile import reconcile

        if source is None:
            return reconcile(self._store, batch, how=_how(full))
        self._check_store(source)
        found = _pipeline(source).reconcile(batch.name, full=full)
        if found.expected.keys is None:
            raise UsageError(f"pipeline {source.name!r} has no source that can be read again: leave out the source")
        return found

    @staticmethod
    def allowed_dead(found: Reconciliation, tolerate: int | str) -> int:
        """Return how many dead letters `tolerate` allows: a number, or a share such as "1%" of the items."""
        from holdfast.runtime.define.options import allowed

        return allowed(check_share(tolerate, "tolerate"), found.expected.admitted)

    def state_after(self, found: Reconciliation) -> str:
        """Return its state after a reconciliation."""
        seen = self.status()
        return seen.state if found.is_explained or seen.end is None else found.state

    def remedies(self, found: Reconciliation, *, source: str | None = None) -> list[str]:
        """Return the commands that repair what a reconciliation found."""
        from holdfast.runtime.operate.repair import remedy_commands

        return remedy_commands(found, self._batch, source=source)

    @overload
    def repair(self, found: Reconciliation | None = None, *, source: "Pipeline | None" = None,
               undo: int | str = UNDO_SHARE, reason: str = "", actor: str = "",
               dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def repair(self, found: Reconciliation | None = None, *, source: "Pipeline | None" = None,
               undo: int | str = UNDO_SHARE, reason: str, actor: str = "",
               dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def repair(self, found: Reconciliation | None = None, *, source: "Pipeline | None" = None,
               undo: int | str = UNDO_SHARE, reason: str = "", actor: str = "",
               dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Send back every item whose output a reconciliation found to be missing or different. If that is a large share
        of the finished items, `undo` must allow it."""
        from holdfast.runtime.define.stage import sinks_among
        from holdfast.runtime.operate import repair
        from holdfast.runtime.report.reconcile import repairable

        batch, share = self._batch, check_share(undo, "undo")
        seen = _reconciliation(found) if found is not None else self._look(batch, source, full=False)
        sinks: Mapping[int, Sink] | None = None if source is None else sinks_among(_pipeline(source).stages)
        findings = repairable(self._store, batch, sinks, _how(seen.observed.how == "full"))

        def look() -> Preview:
            wanted = repair.preview_repair(self._store, batch, seen, findings)
            if wanted.items:
                repair.check_share(wanted, share)
            return wanted

        return act(look, reason, actor, dry_run)

    # -- acts on items ----------------------------------------------------------------------------------------------

    @overload
    def reset(self, item: Key | None = None, *, to_stage: str | int = 0, reason: str = "", actor: str = "",
              dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def reset(self, item: Key | None = None, *, to_stage: str | int = 0, reason: str, actor: str = "",
              dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def reset(self, item: Key | None = None, *, to_stage: str | int = 0, reason: str = "", actor: str = "",
              dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Start an item, or the whole batch, again at a stage, in a new epoch with no attempts used. Owners at work are
        fenced off. A partition of a scan resumes at its checkpoint."""
        from holdfast.runtime.operate.operations import preview_reset

        batch, key = self._batch, None if item is None else canonical.key_text(item)
        if self.has_partitions(item):
            if str(to_stage) not in ("0", "scan"):
                raise UsageError(f"to_stage={to_stage}: a scan has one stage; nothing was changed")
            return self.cursors.resume(key, reason=reason, actor=actor, dry_run=dry_run)  # type: ignore[call-overload, no-any-return]
        look = partial(preview_reset, self._store, batch, key, to_stage=to_stage)
        return act(look, reason, actor, dry_run)

    def has_partitions(self, item: Key | None = None) -> bool:
        """Return whether `item` means a partition of a scan, or all of them, and not a buried row."""
        batch = self._batch
        if item is None:
            return _is_scan(self._store, batch)
        found = lookup.item_named(self._store, batch, canonical.key_text(item))
        return is_partition(self._store, batch, found)

    @overload
    def resolve(self, item: Key, *, output: Any = None, raw_output: bytes | None = None,
                pipeline: "Pipeline | None" = None, reason: str = "", actor: str = "",
                dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def resolve(self, item: Key, *, output: Any = None, raw_output: bytes | None = None,
                pipeline: "Pipeline | None" = None, reason: str, actor: str = "",
                dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def resolve(self, item: Key, *, output: Any = None, raw_output: bytes | None = None,
                pipeline: "Pipeline | None" = None, reason: str = "", actor: str = "",
                dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Settle a dead letter by hand: as done if an output (or its JSON) is given, else as skipped. With `pipeline`,
        the output is validated by its last stage."""
        from holdfast.runtime.handles.items import resolve

        return resolve(self._store, self._batch, item, output, raw_output, pipeline, reason, actor, dry_run)

    @overload
    def resolve_orphans(self, strategy: str = "requeue", *keys: Key, reason: str = "", actor: str = "",
                        dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def resolve_orphans(self, strategy: str = "requeue", *keys: Key, reason: str, actor: str = "",
                        dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def resolve_orphans(self, strategy: str = "requeue", *keys: Key, reason: str = "", actor: str = "",
                        dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Requeue orphans at their checkpoint, fail them, or send them to review: all of them, or those with these
        keys."""
        from holdfast.runtime.handles.items import resolve_orphans

        return resolve_orphans(self._store, self._batch, strategy, keys if keys else None, reason, actor,
                                       dry_run)  # fmt: skip

    @overload
    def lift_blame(self, *, reason: str = "", actor: str = "", dry_run: Literal[True]) -> Preview: ...
    @overload
    def lift_blame(self, *, reason: str, actor: str = "", dry_run: Literal[False] = False) -> ActResult: ...
    def lift_blame(self, *, reason: str = "", actor: str = "", dry_run: bool = False) -> Preview | ActResult:
        """Clear the blame that items carry because their owner died before a commit. The items do not change."""
        from holdfast.runtime.operate.resolution import preview_lift

        return act(lambda: preview_lift(self._store, self._batch), reason, actor, dry_run)

    # -- acts on the batch ------------------------------------------------------------------------------------------

    def pause(self, *, reason: str, actor: str = "") -> BatchChange:
        """Hand out no more items: workers stop at their next checkpoint, and runs do nothing until `unpause`."""
        from holdfast.runtime.operate import steer

        before = self._batch
        return _changed("paused", before, steer.pause(self._store, before, _by(actor, reason)))

    def unpause(self, *, reason: str, actor: str = "") -> BatchChange:
        """Let the next run of the paused batch continue."""
        from holdfast.runtime.operate import steer

        before = self._batch
        return _changed("unpaused", before, steer.unpause(self._store, before, _by(actor, reason)))

    @overload
    def cancel(
        self, *, at_once: bool = False, reason: str = "", actor: str = "", dry_run: Literal[True]
    ) -> Preview: ...
    @overload
    def cancel(self, *, at_once: bool = False, reason: str, actor: str = "",
               dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def cancel(self, *, at_once: bool = False, reason: str = "", actor: str = "",
               dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Cancel it for good. Items in flight are finished or left at a checkpoint; with `at_once`, their owners are
        fenced off instead."""
        from holdfast.runtime.operate import steer

        return act(lambda: steer.preview_cancel(self._store, self._batch, at_once=at_once), reason, actor, dry_run)

    def expect(self, expected: int, *, reason: str = "", actor: str = "") -> BatchChange:
        """Record how many items it has in total, counted by key: it ends with the last of them. To change the number,
        give a reason."""
        from holdfast.runtime.operate import steer

        before = self._batch
        now, end = steer.expect(self._store, before, expected, actor=actor_named(actor),
                                reason=check_words(reason, "reason"))  # fmt: skip
        return _changed("expected", before, now, end)

    def close(self, *, reason: str = "", actor: str = "") -> BatchChange:
        """Take no new items from now on. It ends once those it has are settled. This cannot be undone."""
        from holdfast.runtime.operate import steer

        before = self._batch
        now, end = steer.close(self._store, before, actor=actor_named(actor), reason=check_words(reason, "reason"))
        return _changed("closed", before, now, end)

    def seal(
        self, found: Reconciliation | None = None, *, tolerate: int | str = 0, reason: str = "", actor: str = ""
    ) -> BatchChange:
        """Finish it for good, if every item is accounted for: it takes no more items, commits or acts. Sealing a sealed
        batch changes nothing."""
        from holdfast.runtime.report.reconcile import reconcile

        before = self._batch
        seen = _reconciliation(found) if found is not None else reconcile(self._store, before)
        if before.sealed_at is not None and seen.is_explained:
            return _changed("sealed", before, before)
        most = self.allowed_dead(seen, tolerate)
        now = lifecycle.seal(self._store, before, seen, actor=actor_named(actor), reason=check_words(reason, "reason"),
                             tolerated=most)  # fmt: skip
        return _changed("sealed", before, now)

    def reopen(self, *, reason: str, actor: str = "") -> BatchChange:
        """Lift its seal, so that work can continue. The journal keeps the seal, and who lifted it."""
        before, by = self._batch, _by(actor, reason)
        return _changed("reopened", before, self._store.amend(before.id, to_reopen(by.reason), actor=by.name).batch)


def check_share(said: int | str, name: str) -> int | float:
    """Return a number of items as an int, and a share such as "1%" as a float; refuse everything else."""
    from holdfast.runtime.define.options import count_or_share

    return count_or_share(said, name)


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        known = ", ".join(each.value for each in State)
        raise UsageError(f"state={state!r}: use one of {known}") from None


def _reconciliation(found: Reconciliation) -> Reconciliation:
    check_kind(found, Reconciliation, "found", "what reconcile() returned")
    return found


def _pipeline(source: "Pipeline") -> "Pipeline":
    from holdfast.runtime.pipeline import Pipeline

    check_kind(source, Pipeline, "source", "a pipeline")
    return source


def _how(full: bool) -> How:
    return "full" if full else "quick"


def _place(url: str) -> str | None:
    """Return what identifies a store: its URL, or the real path of its file; None in memory."""
    if url == "memory:":
        return None
    return url if "://" in url else os.path.realpath(url)


def _by(actor: str, reason: str) -> Actor:
    return Actor(name=actor_named(actor), reason=reason)


def _changed(act_: str, before: Batch, now: Batch, end: Reconciliation | None = None) -> BatchChange:
    return BatchChange(
        act=act_, batch=now.name, changed=now.seq != before.seq, mode=now.course.value, expected=now.expected,
        closed_at=now.closed_at, sealed_at=now.sealed_at, admitted=now.admitted,
        end=None if end is None else str(end.state), unexplained=() if end is None else tuple(end.unexplained),
    )  # fmt: skip


def _is_scan(store: Store, batch: Batch) -> bool:
    return kind_of(batch, store.chunks(batch.id)) is Kind.PARTITIONS


def _scan_facts(store: Store, batch: Batch, seen: Status) -> ScanFacts:
    from holdfast.runtime.scan.converge import outstanding

    return ScanFacts(
        unconverged=outstanding(store, batch) if seen.is_complete else "", has_begun=overview.has_begun(store, batch),
        is_followed=overview.is_followed(store, batch), was_worked_on=overview.was_worked_on(store, batch),
    )  # fmt: skip
