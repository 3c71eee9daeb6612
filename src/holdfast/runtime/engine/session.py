"""A run at work: the source is read on the calling thread, with the worker beside it, until everything is done or the
run is asked to stop. Signals and deadlines reach both through the control."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from holdfast.core import course, model
from holdfast.core.errors import HoldfastError, Refused, StoreError
from holdfast.core.model import Batch, Chunk, ClaimRequest, ItemNo, ItemOrigin, Kind, NewItem, State
from holdfast.runtime.define.options import KeyFrom, Options
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.control import BrokenOff, Control, HandedOn, Interrupts, Role
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import Appetite, Purse
from holdfast.runtime.engine.exchange import Rules
from holdfast.runtime.engine.hooks import tell_buried
from holdfast.runtime.engine.ingester import Ingester, none_given
from holdfast.runtime.engine.input_check import InputCheck
from holdfast.runtime.engine.leases import Heartbeat, new_commit_id
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.pools import Finished
from holdfast.runtime.engine.progress import Progress
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.stage_counts import read_pending
from holdfast.runtime.engine.stages import StageDriver, open_stages
from holdfast.runtime.engine.withheld import WithheldDeaths, WithheldReturns, successes
from holdfast.runtime.engine.worker import Worker, look_for_blame
from holdfast.runtime.partitions import expected_rows, rows_handled
from holdfast.runtime.report.status import Letters
from holdfast.runtime.sources.base import SourceAway
from holdfast.runtime.verify import recheck
from holdfast.runtime.verify.inspector import Findings, OutputInspector
from holdfast.stores.base import Store, each_item, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


log = logging.getLogger("holdfast.run")

LAST_SECONDS = 2.0
"""How long a run that was asked to stop at once waits for its worker."""


class Session:
    """The working part of one call of `run()`, between the opening of its batch and the closing."""

    def __init__(self, pipeline: "PipelineDefinition", options: Options, store: Store, owner: str) -> None:
        self.pipeline, self.options, self.store, self.owner = pipeline, options, store, owner
        self.resources = Resources(pipeline)
        self.control = Control(options.workers, options.deadline)
        self.interrupts = Interrupts(self.control, self._wake, options.signals)
        self.finished: Finished = Finished()
        self.findings: Findings | None = None
        """Outputs that could not be verified, if any were inspected."""
        self.ledger = Ledger([])
        self.key: KeyFrom = None
        """The key of items, as passed or as stored with the batch."""
        self.rewound = 0
        self.warnings: list[str] = []
        self.left_alone: recheck.LeftAlone | None = None
        """Dead letters that came again with another payload."""
        self.is_changed = False
        """The program code of a stage has changed since the finished items were made: it may contain a mistake."""
        self._looked_only = False
        """There is no source to read, and recorded outputs were inspected."""

    def count(self, chunks: list[Chunk]) -> Ledger:
        """Begin the figures of the run with the batch as it was before."""
        self.ledger = Ledger(chunks)
        return self.ledger

    def work(self, batch: Batch, items: Iterable[Any] | None) -> None:
        """Read the source and work until nothing is left to do, or the run is asked to stop."""
        ledger = self.ledger
        if self._has_checkpoints:
            self._count_rows(batch, ledger)
        opened = open_stages(
            self.pipeline, self.store, self.options, self.control, self.finished, ledger, self.resources
        )
        with self.interrupts.heeded(), opened as stages:
            if self.pipeline.hooks.before.functions:
                self.pipeline.hooks.before.call(batch.name)
            grace = max(self.pipeline.patience.orphan_after, self.options.lease)
            heartbeat = Heartbeat(self.store, self.options.lease, grace=grace, every=self.options.heartbeat,
                                  on_trouble=lambda why: self._halt(heartbeat, why))  # fmt: skip
            desk = self._desk(batch, stages, ledger, grace)
            with ExitStack() as ends:  # ended in reverse order
                ends.callback(self._tell_buried)
                ends.callback(self._close_inspector)
                gate = self._gate(desk, ends)
                worker = Worker(self.store, batch, desk, stages, self.control, ledger, heartbeat, self.finished, gate)
                role = Role(partial(self._work, worker), at_end=self.interrupts.break_in, on_trouble=self.control.fail)
                worker.serve(role)
                self._show_progress(batch, stages, ends)
                heartbeat.start()
                ends.callback(heartbeat.stop)
                ends.callback(self._join, role)
                ends.callback(self.control.stop, "ended")
                self._feed(batch, items, ledger, role)
                self._wait(role, ledger)
        self.warnings += self.resources.warnings

    @cached_property
    def inspector(self) -> OutputInspector:
        """Inspects recorded outputs, in runs that have some."""
        (batch,) = self.store.batches(self.options.batch)
        return OutputInspector(self.pipeline.stages, pipeline=self.pipeline.name, batch=batch.name, uid=batch.uid)

    def note_findings(self) -> Findings:
        """Return the collection of outputs that could not be verified."""
        if self.findings is None:
            self.findings = Findings([stage.name for stage in self.pipeline.stages])
        return self.findings

    def _close_inspector(self) -> None:
        if "inspector" in vars(self):
            self.inspector.close()

    @property
    def _has_checkpoints(self) -> bool:
        return self.pipeline.stages[0].work.has_checkpoints

    @property
    def tolerance(self) -> model.DeadLimit | None:
        """The limit for the store to judge: how many items may die before the run stops."""
        return self.options.stop_beyond

    # -- setting up -----------------------------------------------------------------------------------------------

    def _gate(self, desk: Desk, ends: ExitStack) -> InputCheck | None:
        """Return the gate, if a verifier must be called before an item continues."""
        if not desk.rules.guarded:
            return None
        gate = InputCheck(self.store, self.inspector, self.finished)
        ends.callback(gate.close)
        return gate

    def _show_progress(self, batch: Batch, stages: Sequence[StageDriver], ends: ExitStack) -> None:
        if self.options.progress is False:
            return
        is_dear, chunks = not self.store.capabilities.one_clock, self.ledger.began_with
        has_several = len(stages) > 1 and not is_dear
        read = partial(read_pending, self.store, batch) if has_several else None
        pending = None
        with suppress(HoldfastError):  # the run itself reports trouble with the store
            pending = read(chunks) if read is not None and any(chunk.pending for chunk in chunks) else None
        names = [stage.stage.name for stage in stages]
        self.ledger.count_stages(names, lambda: [stage.in_handlers for stage in stages], pending)
        progress = Progress(batch.name, self.ledger, self.options.progress, lambda: self.store.chunks(batch.id),
                            dear=is_dear, read_pending=read)  # fmt: skip
        progress.start()
        ends.callback(progress.stop)

    def _count_rows(self, batch: Batch, ledger: Ledger) -> None:
        """Report progress in rows for a scan; rows that were buried are items, but not partitions."""
        rows = [chunk for chunk in ledger.began_with if chunk.kind is Kind.ROWS]
        redriven = frozenset(
            item.n for chunk in rows if chunk.pending
            for item in each_item(self.store, batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING)
        )  # fmt: skip
        count, dead = sum(chunk.size for chunk in rows), sum(chunk.counts.dead for chunk in rows)
        letters = Letters(count, count - len(redriven), dead)
        before = rows_handled(self.store, batch, ledger.began_with)
        ledger.count_rows(before, lambda: expected_rows(self.store, batch), letters, redriven)

    def _desk(self, batch: Batch, stages: Sequence[StageDriver], ledger: Ledger, grace: float) -> Desk:
        options, chunks, request = self.options, ledger.began_with, self._want(batch)
        queues = [stage.queue for stage in stages]
        is_open = options.verify == "none"
        after = [stage.verifier is not None for stage in self.pipeline.stages[:-1]]
        guarded = frozenset() if is_open else frozenset(n for n, asks in enumerate(after, 1) if asks)
        before = successes(chunks)
        deaths = WithheldDeaths(
            batch.name, [queue.facts.name for queue in queues], options.workers, has_cap=options.cap is not None,
            active=not (options.tolerates_all or self._has_checkpoints or (before and not self.is_changed)),
            tolerance=request.tolerance, before=before,
        )  # fmt: skip
        returns = WithheldReturns(
            is_open=is_open, allowed=options.undo, workers=options.workers,
            refusal=lambda bad, asked, lost: recheck.refusal(batch.name, bad, asked, lost.item.key, lost.why),
        )  # fmt: skip
        return Desk(
            Rules(request=request, name=batch.name, grace=grace, guarded=guarded), queues, self.control,
            Purse(options.cap, options.item_cost, chunks, len(queues)),
            Appetite(queues, options.workers, time.monotonic()), deaths, returns, new_id=new_commit_id,
            portion=Assignment, is_empty=not chunks,
            careful=bool(chunks) and look_for_blame(self.store, batch, chunks, ledger),
        )  # fmt: skip

    def _want(self, batch: Batch) -> ClaimRequest:
        return ClaimRequest(
            batch=batch.id,
            owner=self.owner,
            limit=self.options.workers,
            seconds=self.options.lease,
            cap=self.options.cap,
            tolerance=self.tolerance,
        )

    # -- the calling thread ---------------------------------------------------------------------------------------

    def _feed(self, batch: Batch, items: Iterable[Any] | None, ledger: Ledger, role: Role) -> None:
        """Inspect recorded outputs, then read the source, on the calling thread. The worker begins beside it. If the
        source is in memory, its first items are compared before that, so that a run that is refused has done
        nothing."""
        ingester = self._ingester(batch, ledger, role)
        self.control.admit_early = partial(ingester.admit_early, ledger)
        ahead = items is not None and ingester.reads_ahead(items)
        self.control.comparing = items is not None and ingester.compares_first
        try:
            if not ahead:
                self._begin(batch, ledger, role)
            if items is not None:
                begin = partial(self._begin, batch, ledger, role) if ahead else None
                ledger.looking = "comparing the source with what is stored" if self.control.comparing else ""
                ingester.read(items, self.control, ledger, self._wake, begin)
                self._note_nothing(batch, ledger, ingester.taken)
            else:
                self._looked_only = not self.control.stopping
                self.heed_others(batch)
        except BrokenOff:
            pass
        except SourceAway as error:
            self.warnings.append(str(error))
            self.control.stop("away")
        except Refused as error:
            self._stop_if_barred(batch)  # the batch may have been cancelled while the source was read
            if self.control.reason != "cancelled":
                self.control.fail(error)
        except BaseException as error:  # noqa: BLE001 - any error of a source reaches the caller after a clean end
            self.control.fail(error)
        if not role.is_begun:
            role.start()  # it sees that the run stops, and ends
        told = self.control.ingested and not self.control.comparing
        self._compared(ledger)
        self.control.reading = False
        self.control.ingested = True
        if not told:
            self._wake()

    def heed_others(self, batch: Batch) -> None:
        """Follow the announcements of other processes if this run has no source: that theirs was read to its end, or
        that all items are there. They may announce it while this run finishes the last items, and then no other process
        looks for the end."""
        if self._looked_only and batch.ingested_at is not None:
            self.ledger.ingested = True

    def _begin(self, batch: Batch, ledger: Ledger, role: Role) -> bool:
        """Start the worker, and inspect recorded outputs beside it. A full inspection comes first, because items that
        the worker holds could not be sent back. Return whether everything was inspected."""
        if self.options.verify != "full":
            role.start()
        if self.options.verify != "none" and batch.admitted:
            self._recheck(batch, ledger)
        if self.options.verify == "full":
            role.start()
        elif self.rewound:
            self._wake()
        return not self.control.stopping

    def _recheck(self, batch: Batch, ledger: Ledger) -> None:
        def tell(what: str) -> None:
            ledger.looking = what

        check = recheck.Checker(
            self.store, batch, self.inspector, self.options.verify, actor=self.owner, threads=self.options.workers,
            allowed=self.options.undo, findings=self.note_findings(), stopping=lambda: self.control.stopping, tell=tell,
        )  # fmt: skip
        try:
            with naming_outputs(batch):
                self.rewound = check.recheck() - len(check.buried)
        finally:
            ledger.bury(check.buried)
            ledger.send_back(State.DONE, check.undone)
            self.warnings += check.notes
            ledger.looking = ""

    def _ingester(self, batch: Batch, ledger: Ledger, role: Role) -> Ingester:
        options = self.options

        def rerun(n: ItemNo, item: NewItem, origin: ItemOrigin) -> None:
            left = self.left_alone = self.left_alone or recheck.LeftAlone()
            state = recheck.renew(self.store, batch, n, item, left, origin=origin, actor=self.owner)
            if state is not None:
                ledger.send_back(state, lo=n)
                ledger.bury([n] if item.place.state is State.DEAD else [])

        return Ingester(self.store, batch, self.pipeline.stages[0].input, key=self.key, identity=options.identity,
                        changed=options.changed, owner=self.owner, rerun=rerun, patience=options.patience,
                        kind=self.pipeline.stages[0].work.kind,
                        stilled=lambda: self.control.stilled(self._wake, lambda: role.is_over))  # fmt: skip

    def _compared(self, ledger: Ledger) -> None:
        """Let the worker begin the items that were held back, or warn that they were not begun."""
        if self.control.comparing and self.control.stopping and not ledger.ingested:
            self.warnings.append(
                'nothing was begun: with changed="rerun" the whole source is compared with the stored items before '
                "anything is handled, and the source was not read to its end; run again, with a later deadline if a "
                'deadline ended this run, or with changed="keep" to handle the stored items'
            )
        self.control.comparing, ledger.looking = False, ""

    def _note_nothing(self, batch: Batch, ledger: Ledger, given: int) -> None:
        """Warn if a source that had items has none any more: most often its path or pattern is wrong."""
        if ledger.ingested and batch.admitted and not given and not self.options.allow_empty:
            self.warnings.append(none_given(batch.admitted))

    def _stop_if_barred(self, batch: Batch) -> None:
        fresh = find_batch(self.store, batch.name)
        if fresh is not None and (barred := course.barrier(fresh, self.store.now())):
            self.control.stop(barred)

    def _wait(self, role: Role, ledger: Ledger) -> None:
        told = False
        while not role.is_over and not self.control.at_once:
            role.wait(0.2)
            if self.interrupts.any_came and not told and not role.is_over:
                told = True
                log.warning("interrupted: waiting for items in flight; a second Ctrl-C or SIGTERM ends the run at once")
            self.control.watch_deadline(0.0)  # the worker does this as well, unless a hook or a hanging disk blocks it
            self._tell_buried()

    def _tell_buried(self) -> None:
        if self.ledger.buried:
            self.warnings += tell_buried(self.pipeline, self.store, self.options.batch, self.ledger.buried)

    def _join(self, role: Role) -> None:
        """Wait for the worker; after a second signal only for a moment, because something may block it."""
        waited = 0.0
        while not role.is_over and waited < LAST_SECONDS:
            role.wait(0.1)
            waited += 0.1 if self.control.at_once else 0.0

    # -- the worker -----------------------------------------------------------------------------------------------

    def _work(self, worker: Worker, first: Callable[[], None]) -> None:
        try:
            first()
            worker.work()
        except HandedOn:
            raise
        except BaseException as error:  # noqa: BLE001 - the thread that called run() raises it
            self.control.fail(error)
            with suppress(HoldfastError):  # perhaps the store itself failed: then the lease must expire
                worker.release_all()

    def _wake(self) -> None:
        self.finished.put(None)

    def _halt(self, heartbeat: Heartbeat, why: str) -> None:
        """Stop the run, because the leases cannot be renewed. A partition may be far from its next checkpoint: it is
        left where it is."""
        if self._has_checkpoints:
            heartbeat.lose_all()
        self.control.fail(HoldfastError(f"the run stopped: {why}; run again to continue"))
        self._wake()


@contextmanager
def naming_outputs(batch: Batch) -> Iterator[None]:
    """Wrap code that inspects recorded outputs and gives final names to those that have none yet."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"recorded outputs of batch {batch.name!r} could not be checked, or could not get their final names: "
            f"{error}; check the disk, then run again: nothing is done or paid for twice"
        ) from error
