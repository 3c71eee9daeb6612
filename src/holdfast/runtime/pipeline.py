"""A pipeline: its definition, and every operation on it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.core.limits import END_LOOKS, UNDO_SHARE
from holdfast.core.model import Batch
from holdfast.core.verify import Reconciliation
from holdfast.runtime import lookup, plan
from holdfast.runtime.acts import Actor, ActResult, actor_named, check_words
from holdfast.runtime.define.calls import current_batch
from holdfast.runtime.define.options import (
    Changed,
    Identity,
    KeyFrom,
    Level,
    OnCodeChange,
    Options,
    Signals,
    check_capabilities,
    check_identity,
)
from holdfast.runtime.define.pipeline import PipelineDefinition, check_name
from holdfast.runtime.define.policy import Budget
from holdfast.runtime.define.stage import Where, sinks_among
from holdfast.runtime.engine import remote, source_keys
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.run import Run
from holdfast.runtime.events import Target, delivering, receivers
from holdfast.runtime.message import Processed, Processor
from holdfast.runtime.operate import steer
from holdfast.runtime.plan import Plan
from holdfast.runtime.recover import Recovery, preview, recover
from holdfast.runtime.report import lifecycle
from holdfast.runtime.report.report import Report, Result
from holdfast.runtime.report.status import Figures
from holdfast.runtime.text import Duration
from holdfast.stores import owners
from holdfast.stores.open import capabilities_of


class Pipeline(PipelineDefinition):
    """A pipeline: stages in the order in which they are defined, a store that remembers their work, perhaps a source.

    >>> book = Pipeline("book", store="memory:")
    >>> @book.stage
    ... def shout(word: str) -> str:
    ...     return word.upper()
    >>> report = book.run(["a", "b"], progress=False)
    >>> sorted(result.output for result in report.results())
    ['A', 'B']

    Args:
        name: The name of the pipeline, and of its batch unless `run(batch=…)` names one.
        store: A path, a URL or an open store. The default is `$HOLDFAST_STORE`, else `.holdfast/state.db`.
        source: The items of `run()`: an iterable, a source such as `hf.Csv`, or a function that returns one.
        key: What identifies an item, if `run(key=…)` does not say: a field, or a function of the item.
        orphan_after: How long an item may make no progress before it counts as an orphan.
        dead_after: How long a dead letter may stay open before it counts as old.
        events: Where events are sent: a URL, `"file:PATH"`, `"-"`, a function, or several of these.
        allow_empty: True if a source without items is fine. By default such a run ends as `empty`, with exit code 1.
    """

    def run(self, items: Iterable[Any] | None = None, batch: str | None = None, *, key: KeyFrom = None,
            workers: int = 16, budget: Budget | None = None, tolerate: int | str | None = None,
            stop_beyond: int | str | None = None,
            deadline: Duration | datetime | None = None, until: Duration | datetime | None = None,
            lease: Duration = "30s", verify: Level = "quick", executor: Executor | Where | None = None,
            progress: bool | Callable[[Figures], None] | None = None, identity: Identity = "key",
            changed: Changed = "refuse", undo: int | str = UNDO_SHARE,
            events: Sequence[Target] | Target = (), on_code_change: OnCodeChange | None = None,
            seal: bool = False, heartbeat: Duration | None = None,
            signals: Signals = "raise", patience: Duration = "5m",
            allow_empty: bool | None = None) -> Report:  # fmt: skip
        """Run a batch, or continue it. Nothing that is finished is done again.

        The first SIGINT or SIGTERM lets items in flight reach their next checkpoint; the second stops at once. After
        SIGINT (Ctrl-C), `hf.Interrupted` is raised, with the `.report`. After SIGTERM the report is returned, with the
        exit code 75. This holds in the main thread; in other threads signals are left alone.

        Errors of items do not end a run: they are in the report. It raises `hf.UsageError`, `hf.PayloadChanged`,
        `hf.DefinitionChanged`, `hf.Refused`, `hf.DiedAlike`, `hf.ResourceError`, `hf.StoreError`, and anything that the
        source or a hook raises.

        Args:
            items: Any iterable, generator or source; it is streamed. Without it, the pipeline's own source is read.
                If there is none either, the items in the store are finished.
            batch: The name of the batch; by default that of the pipeline.
            key: A field of the item, or a function of it. The default is the key that the source gives, the item itself
                if it is a short text or a whole number, else a digest of its content. The batch remembers the field;
                another one is refused later.
            workers: How many handlers may run at the same time, over all stages: 1 to 10,000.
            budget: The most the batch may cost, an `hf.Budget`. The batch pauses when it is used up.
            tolerate: How many dead letters are acceptable at the end: `5` or `"1%"`. The default is `stop_beyond`, else
                none.
            stop_beyond: Stop the run when more items than this are dead: `5` or `"1%"`.
            deadline: The end of this run: a time from now, or an aware `datetime`. Run again to continue.
            until: The end of the batch: an aware `datetime`, or a time from the first run that sets it. Items left by
                then are cancelled.
            lease: How long a claim lasts if this process dies and no other process can see that: 0.05 s to a day.
            heartbeat: How often leases are renewed; by default three times per lease.
            verify: How much is checked before a recorded output is trusted: `"none"`, `"quick"` or `"full"`.
            undo: How many recorded outputs that no longer hold may be undone: a share such as `"100%"`, applied from
                100 items on, or a number of items. Beyond that the run raises `hf.UndoRefused` and undoes nothing.
            executor: `"threads"`, `"processes"` or a `concurrent.futures.Executor`, for stages that name none.
            progress: False for none, or a function that is called with an `hf.Figures`, which has an `hf.StageFigures`
                per stage, ten times a second and at the end. The default is a bar in a terminal, a line in a notebook,
                and lines on standard error elsewhere.
            identity: `"key"`; `"content"`: the digest of the validated payload is the key; `"new"`: every item is new
                each time it is read.
            changed: What to do if a known key comes with another payload: `"refuse"` the run, `"keep"` the stored one,
                or `"rerun"` the item with the new one. Dead letters are left alone.
            events: Where events are sent in addition to the pipeline's own receivers.
            on_code_change: What to do if the code, a schema or the sink of a stage has changed: `"keep"` finished work,
                `"rerun"` what the change affects, or `"refuse"`. By default the run continues and says so.
            signals: `"raise"`: Ctrl-C drains and raises; `"report"`: it drains and the report is returned; `"ignore"`:
                signals are left to you.
            seal: True to seal the batch once every item is accounted for and no more are dead than tolerated.
            patience: How long to wait for a table, a bucket or an API that does not answer. Then the run ends with 75.
            allow_empty: True if a source without items is fine; by default what the pipeline was given.
        """
        if remote.in_worker():
            raise UsageError(
                f'{self.name}.run() was called in a worker process: put the call under `if __name__ == "__main__":`'
            )
        options = self._options(
            batch, key, workers=workers, budget=budget, tolerate=tolerate, stop_beyond=stop_beyond, deadline=deadline,
            lease=lease, verify=verify, executor=executor, progress=progress, identity=identity, changed=changed,
            on_code_change=on_code_change, undo=undo, seal=seal, until=until, heartbeat=heartbeat, signals=signals,
            patience=patience,
            allow_empty=self.allow_empty if allow_empty is None else allow_empty,
        )  # fmt: skip
        if current_batch.get() == (self.name, options.batch):
            raise UsageError(
                f"batch {options.batch!r} was run from one of its own handlers, and would wait for itself: run another "
                "batch there"
            )
        everybody = [*self.receivers, *(receivers(events) if events else ())]
        if options.cap is not None or everybody:
            check_capabilities(capabilities_of(self._where if self._store is None else self._store), options, everybody)
        told = delivering(lambda: self.store, self.name, everybody, options.deadline) if everybody else nullcontext()
        with told:
            return Run(self, options, self.store).go(self._items(items))

    def plan(self, items: Iterable[Any] | None = None, batch: str | None = None, *, key: KeyFrom = None,
             workers: int = 16, verify: Level = "quick", identity: Identity = "key", changed: Changed = "refuse",
             on_code_change: OnCodeChange | None = None, undo: int | str = UNDO_SHARE) -> Plan:  # fmt: skip
        """Return what a run would do with every item, and why, with a forecast of time and money. It changes nothing;
        its arguments are those of `run`."""
        options = self._options(
            batch,
            key,
            workers=workers,
            verify=verify,
            identity=identity,
            changed=changed,
            on_code_change=on_code_change,
            undo=undo,
        )
        Resources(self)  # refuse what a run would refuse
        return plan.make_plan(self, options, self._items(items))

    def process(self, item: Any, batch: str | None = None, *, key: KeyFrom = None,
                deadline: Duration | datetime | None = None, lease: Duration = "30s",
                changed: Changed = "refuse") -> Processed:  # fmt: skip
        """Handle one message: admit the item under its key, and run it through the stages in this process.

        Delivered again, an unfinished item resumes where it was, and a finished one is answered from the store. A new
        item of a batch that is sealed, cancelled, closed or past its end is refused.

        Args:
            item: The item, as `run` takes it.
            batch: The name of the batch; by default that of the pipeline.
            key: A field of the item, or a function of it.
            deadline: When this call must be over: a time from now, or an aware `datetime`.
            lease: How long the claim lasts if this process dies.
            changed: What to do if the key is known with another payload: `"refuse"`, `"keep"` or `"rerun"`.
        """
        with self.processor(batch, key=key, deadline=deadline, lease=lease, changed=changed) as processor:
            return processor.process(item)

    def processor(self, batch: str | None = None, *, key: KeyFrom = None, deadline: Duration | datetime | None = None,
                  lease: Duration = "30s", changed: Changed = "refuse") -> Processor:  # fmt: skip
        """Return a context manager that handles several messages as `process` does, all before one deadline:
        `with p.processor() as one: one.process(item)`."""
        options = self._options(batch, key, deadline=deadline, lease=lease, changed=changed)
        return Processor(self, batch=options.batch, key=options.key, changed=options.changed, lease=options.lease,
                         deadline=options.deadline)  # fmt: skip

    def reconcile(self, batch: str | None = None, items: Iterable[Any] | None = None, *, key: KeyFrom = None,
                  full: bool = False) -> Reconciliation:  # fmt: skip
        """Compare, in both directions, what the batch should contain, what is recorded, and what is really there.

        Args:
            batch: The name of the batch; by default that of the pipeline.
            items: What the batch should contain. The default is the pipeline's source, else what was admitted.
            key: A field of the item, or a function of it.
            full: True to read every output file, and not only its size and time.
        """
        named = lookup.batch_named(self.store, check_name(batch if batch is not None else self.name, "batch"))
        source = None if items is None and isinstance(self._source, Iterator) else self._items(items)
        compare = partial(source_keys.compare_with_pipeline, self, named, source, key if key is not None else self._key,
                          full=full, given=items is not None)  # fmt: skip
        looks = 1 if isinstance(source, Iterator) else END_LOOKS
        return lifecycle.conclude_end(self.store, named, compare, actor=owners.new_owner(), looks=looks)

    def expect(self, batch: str | None, expected: int, *, reason: str = "", actor: str = "") -> None:
        """Record how many items the batch has in total, counted by key: it ends with the last of them. The batch is
        opened if necessary. To change the number, give a reason."""
        steer.check_total(expected)
        with self.processor(batch) as opened:
            steer.expect(self.store, opened.batch, expected, actor=actor_named(actor),
                         reason=check_words(reason, "reason"), sinks=sinks_among(self.stages))  # fmt: skip

    def close(self, batch: str | None = None, *, reason: str = "", actor: str = "") -> None:
        """Take no new items from now on. The batch ends once those it has are settled. This cannot be undone."""
        steer.close(self.store, self._known(batch), actor=actor_named(actor), reason=check_words(reason, "reason"),
                     sinks=sinks_among(self.stages))  # fmt: skip

    def pause(self, batch: str | None = None, *, reason: str, actor: str = "") -> None:
        """Hand out no more items: workers stop at their next checkpoint, and runs do nothing until `unpause`."""
        steer.pause(self.store, self._known(batch), _by(actor, reason))

    def unpause(self, batch: str | None = None, *, reason: str, actor: str = "") -> None:
        """Let the next run of a paused batch continue."""
        steer.unpause(self.store, self._known(batch), _by(actor, reason))

    def cancel(self, batch: str | None = None, *, reason: str, actor: str = "", at_once: bool = False) -> ActResult:
        """Cancel a batch for good. Items in flight are finished or left at a checkpoint; with `at_once`, their owners
        are fenced off instead. Return how many items were cancelled and how many are in flight."""
        return steer.cancel(self.store, self._known(batch), _by(actor, reason), at_once=at_once)

    def _known(self, batch: str | None) -> Batch:
        return lookup.batch_named(self.store, check_name(batch if batch is not None else self.name, "batch"))

    def results(self, batch: str | None = None) -> Iterator[Result]:
        """Yield the results of a batch, in the order of its items: `.key` and `.output`, validated."""
        return self.report(batch).results()

    def report(self, batch: str | None = None) -> Report:
        """Return the report of the batch as it is now, without running anything."""
        return Report.of(self, check_name(batch if batch is not None else self.name, "batch"))

    def recover(
        self, items: Iterable[Any] | None = None, *, by: Actor, batch: str | None = None, key: KeyFrom = None,
        identity: Identity = "key", damaged: Path | None = None, dry_run: bool = False,
    ) -> Recovery:  # fmt: skip
        """Make the record of a batch again from its output files, after the store was lost or `damaged`: then its file
        is set aside. With `dry_run`, return what would be found."""
        name = check_name(batch if batch is not None else self.name, "batch")
        found = self._items(items)
        if found is None:
            raise UsageError(
                f"pipeline {self.name!r} has no source: pass the items to recover(), because outputs alone do not show "
                "what they were made from"
            )
        check_identity(key, identity, "keep")
        key = key if key is not None else self._key
        if dry_run:
            return preview(self, found, batch=name, key=key, identity=identity)
        return recover(self, found, by, batch=name, key=key, identity=identity, damaged=damaged)

    def _options(self, batch: str | None, key: KeyFrom, **said: Any) -> Options:
        """Return the checked options; the pipeline must have a stage."""
        name = check_name(batch if batch is not None else self.name, "batch")
        if not self.stages:
            raise UsageError(f"pipeline {self.name!r} has no stages: define one with @{self.name}.stage")
        return Options.check(batch=name, key=key if key is not None else self._key, **said)


def _by(actor: str, reason: str) -> Actor:
    """Return the actor of a call from Python: this process, unless another is named."""
    return Actor(name=actor_named(actor), reason=reason)
