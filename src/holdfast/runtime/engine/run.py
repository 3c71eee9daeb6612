"""One run of one batch: opening, working, closing and reporting."""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical, course, journal
from holdfast.core.course import End, to_note
from holdfast.core.errors import HoldfastError, Refused, UsageError
from holdfast.core.model import Batch, BatchMode, Chunk, State
from holdfast.core.verify import How, Reconciliation
from holdfast.runtime.define import definition
from holdfast.runtime.define.options import KeyFrom, Options, allowed
from holdfast.runtime.define.schema import raw_bytes
from holdfast.runtime.define.stage import Stage, sinks_among
from holdfast.runtime.engine.control import ENDED_FOR_GOOD
from holdfast.runtime.engine.session import Session, naming_outputs
from holdfast.runtime.engine.source_keys import SourceKeys
from holdfast.runtime.operate import changed_code, steer
from holdfast.runtime.report import lifecycle, statistics
from holdfast.runtime.report.reconcile import reconcile
from holdfast.runtime.report.report import Report, make
from holdfast.runtime.text import command, in_utc
from holdfast.runtime.verify import ownership, recheck
from holdfast.runtime.verify.ownership import Ownership
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

log = logging.getLogger("holdfast.run")


class Run:
    """One call of `run()`."""

    def __init__(self, pipeline: "PipelineDefinition", options: Options, store: Store) -> None:
        self.pipeline, self.options, self.store, self.owner = pipeline, options, store, owners.new_owner()
        self.session = Session(pipeline, options, store, self.owner)
        self.warnings = self.session.warnings
        self.failed_hooks: list[str] = []
        self.closing = Closing(self.store, pipeline.stages, options, self.owner)
        self.owned: Ownership | None = None
        """The owner of the output files, if there are any."""

    def go(self, items: Iterable[Any] | None) -> Report:
        """Open, verify, read, work, finish. Acknowledged work is kept whatever happens."""
        try:
            report = self._go(items)
        finally:
            if self.owned is not None:
                self.owned.close()
        self.session.interrupts.pass_on(report.batch, report.why, report)
        return report

    def _go(self, items: Iterable[Any] | None) -> Report:
        batch = self._open(items)
        if self.options.until is not None:
            batch = steer.set_end(self.store, batch, self.options.until, actor=self.owner)
        chunks = self.store.chunks(batch.id)
        ledger = self.session.count(chunks)
        if batch.sealed_at is not None:
            found = self.closing.again(batch, items, self.session.key)
            ledger.ingested = True
            return self._report(batch, found)
        if self.owned is not None and self.owned.superseded:
            items = None
        self.closing.begin(chunks)
        if barred := course.barrier(batch, self.store.now()):
            self._halt(batch, barred, items)
        else:
            self.session.work(batch, items)
        return self._finish(batch)

    def _halt(self, batch: Batch, barred: str, items: Iterable[Any] | None) -> None:
        """Do nothing in a batch that is paused or cancelled, or whose end has come."""
        self.session.control.stop(barred)
        self.session.ledger.ingested = barred == "until" and batch.ingested_at is not None and items is None
        if barred == "until" and items is not None:
            at = in_utc(batch.ends_at or 0.0)
            self.warnings.append(f"the end of the batch came at {at}, before this run: its source was not read")

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self, items: Iterable[Any] | None) -> Batch:
        """Return the batch, if this pipeline may continue with it."""
        options, pipeline = self.options, self.pipeline
        known = next(iter(self.store.batches(options.batch)), None)
        if known is None and items is None:
            raise UsageError(
                f"batch {options.batch!r} does not exist yet and pipeline {pipeline.name!r} has no source: pass "
                "items to run()"
            )
        self.session.key, described = definition.for_run(
            pipeline, known, options.key, options.identity, reads_items=items is not None
        )
        if known is not None:
            definition.check(known, pipeline.name, described, reads_items=items is not None)
            if not options.seal:
                lifecycle.check_open(self.store, known)
            if known.sealed_at is not None:
                return known
            if self._is_over(known):
                known = steer.set_end(self.store, known, options.until, actor=self.owner)
            if self._is_over(known):  # an item that goes back now would be cancelled
                return known
            self._own()
            settled = changed_code.settle(self.store, known, described, options.on_code_change, actor=self.owner)
            described, self.session.is_changed = settled.definition, settled.is_changed
            self.warnings += settled.warnings
        else:
            self._own()
        opened = self.store.open_batch(options.batch, pipeline.name, described, actor=self.owner)
        if known is None and self.owned is not None:
            self.owned.settle(opened)
        return opened

    def _own(self) -> None:
        """Claim the file names of the batch, or refuse, before anything is written or paid for."""
        if not self.closing.sinks:
            return
        self.owned = ownership.own(self.store, self.pipeline.name, self.options.batch, self.pipeline.stages)
        self.warnings += self.owned.notes(self.options.batch)

    def _is_over(self, batch: Batch) -> bool:
        return course.barrier(batch, self.store.now()) in ENDED_FOR_GOOD

    # -- closing ------------------------------------------------------------------------------------------------

    def _finish(self, batch: Batch) -> Report:
        control, ledger = self.session.control, self.session.ledger
        if control.trouble is not None:
            self._look_for_end(batch)
            raise control.trouble
        (fresh,) = self.store.batches(batch.name)
        self.session.heed_others(fresh)
        if control.reason in ENDED_FOR_GOOD:  # every item that no process holds is cancelled now
            steer.clear_over(self.store, fresh, actor=self.owner)
        if self.closing.sinks:
            with naming_outputs(fresh):  # another process may have died before its renames, after this one checked
                recheck.publish_leftovers(self.store, fresh, self.pipeline.stages, self.session.note_findings())
        if control.reason not in ENDED_FOR_GOOD:
            self.failed_hooks += complete_stages(self.store, fresh, self.pipeline.stages, self.owner)
        if ledger.late:
            self.warnings.append(f"{ledger.late:,} items came after the batch was sealed: their work is not recorded")
        found = self._compare(fresh)
        if self.session.left_alone is not None and self.session.left_alone.count:
            self.warnings.append(self.session.left_alone.warning(batch.name))
        self.warnings += ledger.notes
        if found is None:
            lifecycle.note_halt(self.store, fresh, control.reason, actor=self.owner, tolerance=self.session.tolerance)
        report = self._report(batch, found)
        if found is None and report.state.startswith("complete"):  # other processes settled the rest
            found = self._compare(fresh)
            report = self._report(batch, found)
        return self._told(report, batch, found) if report.state.startswith("complete") else report

    def _compare(self, batch: Batch) -> Reconciliation | None:
        with naming_outputs(batch):
            return self.closing.end(batch, read=self.session.ledger.ingested)

    def _look_for_end(self, batch: Batch) -> None:
        """Publish the end of the batch if it has come, although the run failed: it may have settled the last item of a
        batch whose end other processes announced, and no other process would notice."""
        if self.session.ledger.now.settled:
            with suppress(HoldfastError, OSError):  # perhaps the store or the disk itself failed
                self.closing.end(batch, read=False)

    def _told(self, report: Report, batch: Batch, found: Reconciliation | None) -> Report:
        """Call the hooks of a batch that is complete; their errors are in the report."""
        try:
            if self.pipeline.hooks.after.functions:
                self.pipeline.hooks.after.call(report)
        except Exception as error:  # noqa: BLE001 - a user's hook may raise anything, and must not hide the report
            self.failed_hooks.append(hook_failure(f"the hook after pipeline {self.pipeline.name!r}", error))
            return self._report(batch, found)
        return report

    def _report(self, batch: Batch, found: Reconciliation | None) -> Report:
        session = self.session
        (fresh,) = self.store.batches(batch.name)
        return make(self.pipeline, self.store, fresh, run=session.ledger.figures(), reason=session.control.reason,
                    tolerated=self.options.tolerate, rewound=session.rewound,
                    warnings=(*self.warnings, *self.closing.warnings), findings=session.findings,
                    compared=found, began_with=session.ledger.began_with,
                    failed_hooks=tuple(self.failed_hooks))  # fmt: skip


class Closing:
    """The closing of a run: it reconciles what the run can vouch for, publishes the end of the batch, and seals it if
    asked to. It remembers how the chains ended when the run began; the rest happens at its end."""

    def __init__(self, store: Store, stages: Sequence[Stage], options: Options, actor: str) -> None:
        self._store, self._stages, self._options, self._actor = store, stages, options, actor
        self.sinks = sinks_among(stages)
        self._heads = b""
        self.warnings: list[str] = []

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Remember the ends of the chains, before recorded outputs are checked."""
        self._heads = course.cover(chunks) if self.sinks else b""

    def end(self, batch: Batch, *, read: bool) -> Reconciliation | None:
        """Reconcile, publish and seal, once nothing is in flight; return None while something is left to do. `read`:
        this run reached the end of its source."""
        found = lifecycle.conclude_end(
            self._store, batch, lambda: self._compare(batch.name, read=read), actor=self._actor
        )
        if self._options.seal and found is not None:
            self._seal(batch, found, read=read)
        return found

    def _compare(self, name: str, *, read: bool) -> Reconciliation | None:
        (batch,) = self._store.batches(name)
        chunks = self._store.chunks(batch.id)
        was_read = course.is_whole(batch, read=read) or batch.course is BatchMode.CANCELLED
        has_ended = was_read or course.has_ended(batch, self._store.now())
        if not has_ended or any(chunk.pending for chunk in chunks):
            return None
        return reconcile(self._store, batch, sinks=self.sinks, how=self._depth(chunks),
                         allow_empty=self._options.allow_empty, chunks=chunks)  # fmt: skip

    def _depth(self, chunks: Sequence[Chunk]) -> How:
        """Return how closely to inspect files: not those that the check at the beginning has just inspected if nothing
        has happened since, and none at all if that was switched off."""
        if self._options.seal:
            return "quick"
        if not self.sinks or self._options.verify == "none" or course.cover(chunks) == self._heads:
            return "sums"
        return "files"

    def _seal(self, batch: Batch, found: Reconciliation, *, read: bool) -> None:
        tolerated = allowed(self._options.tolerate, found.expected.admitted)
        if batch.sealed_at is not None:
            return
        if found.end not in (End.COMPLETE, End.WITH_DEAD) and found.is_explained:
            as_it_is = f"to seal it as it is: `{command('reconcile', batch.name, options='--seal')}`"
            self.warnings.append(f"not sealed: the batch was {found.end} before it was complete; {as_it_is}")
            return
        if not read:
            self.warnings.append("not sealed: the batch ended before its source was read to the end")
            return
        if found.exit_code(tolerated):
            dead = f"{found.recorded.dead:,} dead, {tolerated:,} tolerated"
            self.warnings.append(f"not sealed: {', '.join(found.unexplained) or dead}")
            return
        lifecycle.seal(self._store, batch, found, actor=self._actor, tolerated=tolerated)

    def again(self, batch: Batch, items: Iterable[Any] | None, key: KeyFrom) -> Reconciliation:
        """Reconcile a sealed batch that is run and sealed again, as after a crash behind the seal. This is fine if it
        is unchanged and the source has nothing new."""
        keys = SourceKeys(self._store, batch, self._stages[0].input, items, key) if items is not None else None
        found = reconcile(self._store, batch, sinks=self.sinks, source=keys)
        if found.is_explained:
            return found
        try:
            lifecycle.check_open(self._store, batch)
        except Refused as refused:
            raise Refused(f"{refused}; and it changed after the seal: {', '.join(found.unexplained)}") from None
        return found


def complete_stages(store: Store, batch: Batch, stages: Sequence[Stage], actor: str) -> list[str]:
    """Run the `after` hooks of every stage that has nothing left to do, unless that is recorded already for the same
    items. Return the errors of hooks: their stages are not recorded, and the next run calls the hooks again."""
    failed: list[str] = []
    if not any(stage.hooks.after.functions for stage in stages) or batch.ingested_at is None:
        return failed
    first_open = min((r.place.stage for r in each_item(store, batch.id, state=State.PENDING)), default=len(stages))
    known = lifecycle.completed_stages(store, batch)
    facts = statistics.collect(store, batch)
    for index, stage in enumerate(stages[:first_open]):
        told = facts.stages[index]
        standing = {"runs": told.runs, "outcomes": dict(sorted(told.outcomes.items()))}
        if _is_recorded(known.get(stage.name, {}), batch.admitted, standing):
            continue
        try:
            returned = [value for value in stage.hooks.after.call(told) if value is not None]
        except Exception as error:  # noqa: BLE001 - a user's hook may raise anything
            failed.append(hook_failure(f"the hook after stage {stage.name!r}", error))
            continue
        note = {
            "stage": stage.name,
            "items": batch.admitted,
            "standing": standing,
            "completed_at": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "metadata": canonical.decode(raw_bytes(returned[0] if len(returned) == 1 else returned))
            if returned
            else None,
        }
        body = journal.Acted(reason="complete", note=canonical.encode(note))
        store.amend(batch.id, to_note(lifecycle.STAGE_COMPLETED, body), actor=actor)
    return failed


def hook_failure(what: str, error: Exception) -> str:
    """Return what a report says about a hook that raised."""
    log.error("%s failed", what, exc_info=error)
    return f"{what} failed: {type(error).__name__}: {error}; the work is recorded, and the next run calls it again"


def _is_recorded(known: dict[str, Any], items: int, standing: dict[str, Any]) -> bool:
    """Return whether completion of the stage was recorded with these items and their present outcomes; older versions
    recorded only the number of items."""
    return known.get("items") == items and known.get("standing", standing) == standing
