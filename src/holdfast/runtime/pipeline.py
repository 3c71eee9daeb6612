"""A pipeline: what a user defines, and everything that can be done with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.core.limits import END_LOOKS, UNDO_SHARE
from holdfast.core.model import Batch
from holdfast.core.verify import Reconciliation
from holdfast.runtime import lookup, plan
from holdfast.runtime.acts import Actor, ActResult
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
    """Stages in the order they are defined, a store to remember what they did, and perhaps a source.

    >>> book = Pipeline("book", store="memory:")
    >>> @book.stage
    ... def shout(word: str) -> str:
    ...     return word.upper()
    >>> report = book.run(["a", "b"], progress=False)
    >>> sorted(result.output for result in report.results())
    ['A', 'B']
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
        """Run the batch, or continue it: nothing that is finished is done again.

        Without items, the pipeline's own source is read; where it has none, what is stored is finished. Ctrl-C drains
        what is in flight and then raises `Interrupted`, unless `signals` tells otherwise.

        `progress` is False for none, or a function that is called with an `hf.Figures` ten times a second and once at
        the end: counts of the batch and, in `stages`, an `hf.StageFigures` per stage. It runs in a thread of its own.
        """
        if remote.in_worker():
            raise UsageError(
                f'{self.name}.run() was called in a worker process: put it under `if __name__ == "__main__":`'
            )
        options = self._options(
            batch, key, workers=workers, budget=budget, tolerate=tolerate, stop_beyond=stop_beyond, deadline=deadline,
            lease=lease, verify=verify, executor=executor, progress=progress, identity=identity, changed=changed,
            on_code_change=on_code_change, undo=undo, seal=seal, until=until, heartbeat=heartbeat, signals=signals,
            patience=patience,
            allow_empty=self.allow_empty if allow_empty is None else allow_empty,
        )  # fmt: skip
        if current_batch.get() == (self.name, options.batch):
            raise UsageError(f"batch {options.batch!r} was run by one of its own handlers: it would wait for itself")
        everybody = [*self.receivers, *(receivers(events) if events else ())]
        if options.cap is not None or everybody:
            check_capabilities(capabilities_of(self._where if self._store is None else self._store), options, everybody)
        told = delivering(lambda: self.store, self.name, everybody, options.deadline) if everybody else nullcontext()
        with told:
            return Run(self, options, self.store).go(self._items(items))

    def plan(self, items: Iterable[Any] | None = None, batch: str | None = None, *, key: KeyFrom = None,
             workers: int = 16, verify: Level = "quick", identity: Identity = "key", changed: Changed = "refuse",
             on_code_change: OnCodeChange | None = None) -> Plan:  # fmt: skip
        """Return what a run would do with every item, and why, with a forecast of time and money. Nothing is
        changed."""
        options = self._options(
            batch,
            key,
            workers=workers,
            verify=verify,
            identity=identity,
            changed=changed,
            on_code_change=on_code_change,
        )
        Resources(self)  # what a run would refuse, its plan refuses
        return plan.make_plan(self, options, self._items(items))

    def process(self, item: Any, batch: str | None = None, *, key: KeyFrom = None,
                deadline: Duration | datetime | None = None, lease: Duration = "30s",
                changed: Changed = "refuse") -> Processed:  # fmt: skip
        """Handle one message: admit the item by its key, and bring it through the stages here and now.

        Handed over again, it resumes where it was; once it is finished, it is answered from the store.
        """
        with self.processor(batch, key=key, deadline=deadline, lease=lease, changed=changed) as processor:
            return processor.process(item)

    def processor(self, batch: str | None = None, *, key: KeyFrom = None, deadline: Duration | datetime | None = None,
                  lease: Duration = "30s", changed: Changed = "refuse") -> Processor:  # fmt: skip
        """Handles several messages one after the other, as `process` does, by the same deadline."""
        options = self._options(batch, key, deadline=deadline, lease=lease, changed=changed)
        return Processor(self, batch=options.batch, key=options.key, changed=options.changed, lease=options.lease,
                         deadline=options.deadline)  # fmt: skip

    def reconcile(self, batch: str | None = None, items: Iterable[Any] | None = None, *, key: KeyFrom = None,
                  full: bool = False) -> Reconciliation:  # fmt: skip
        """Compare what the batch should have, what is recorded of it and what is really there, in both directions.

        The items, or else the pipeline's own source, say what there should be; without any, what was admitted does.
        """
        named = lookup.batch_named(self.store, check_name(batch if batch is not None else self.name, "batch"))
        source = None if items is None and isinstance(self._source, Iterator) else self._items(items)
        compare = partial(source_keys.compare_with_pipeline, self, named, source, key if key is not None else self._key,
                          full=full, given=items is not None)  # fmt: skip
        looks = 1 if isinstance(source, Iterator) else END_LOOKS
        return lifecycle.conclude_end(self.store, named, compare, actor=owners.new_owner(), looks=looks)

    def expect(self, batch: str | None, expected: int, *, reason: str = "", actor: str = "") -> None:
        """Put on record how many items the batch has in all, counted by their keys: the last of them ends it. The batch
        is opened if need be. Another number than before needs a reason."""
        steer.check_total(expected)
        with self.processor(batch) as opened:
            steer.expect(self.store, opened.batch, expected, actor=_actor(actor), reason=reason,
                          sinks=sinks_among(self.stages))  # fmt: skip

    def close(self, batch: str | None = None, *, reason: str = "", actor: str = "") -> None:
        """Take no new items from now on; those that are there may come again, and once they are settled it ends. It
        cannot be undone."""
        steer.close(self.store, self._known(batch), actor=_actor(actor), reason=reason,
                     sinks=sinks_among(self.stages))  # fmt: skip

    def pause(self, batch: str | None = None, *, reason: str, actor: str = "") -> None:
        """Hand out nothing more: workers stop at their next checkpoint, and no run continues before `unpause`."""
        steer.pause(self.store, self._known(batch), _by(actor, reason))

    def unpause(self, batch: str | None = None, *, reason: str, actor: str = "") -> None:
        """Let a paused batch continue: the next run does."""
        steer.unpause(self.store, self._known(batch), _by(actor, reason))

    def cancel(self, batch: str | None = None, *, reason: str, actor: str = "", at_once: bool = False) -> ActResult:
        """Call a batch off, for good. What is in flight is finished or left at a checkpoint; with `at_once` its owners
        are fenced off instead."""
        return steer.cancel(self.store, self._known(batch), _by(actor, reason), at_once=at_once)

    def _known(self, batch: str | None) -> Batch:
        return lookup.batch_named(self.store, check_name(batch if batch is not None else self.name, "batch"))

    def results(self, batch: str | None = None) -> Iterator[Result]:
        """Yield the results of a batch, in the order of its items: `.key` and `.output`, validated."""
        return self.report(batch).results()

    def report(self, batch: str | None = None) -> Report:
        """Return how the batch stands, without running anything."""
        return Report.of(self, check_name(batch if batch is not None else self.name, "batch"))

    def recover(
        self, items: Iterable[Any] | None = None, *, by: Actor, batch: str | None = None, key: KeyFrom = None,
        identity: Identity = "key", set_aside: tuple[str, ...] = (), dry_run: bool = False,
    ) -> Recovery:  # fmt: skip
        """Make the record of a batch again from its output files, after the store was lost or set aside. With `dry_run`
        it is only said what would be found."""
        name = check_name(batch if batch is not None else self.name, "batch")
        found = self._items(items)
        if found is None:
            raise UsageError(
                f"pipeline {self.name!r} has no source: give recover() the items, their outputs alone do not say "
                "what they were made from"
            )
        check_identity(identity, "keep")
        key = key if key is not None else self._key
        if dry_run:
            return preview(self, found, batch=name, key=key, identity=identity)
        return recover(self, found, by, batch=name, key=key, identity=identity, moved=set_aside)

    def _options(self, batch: str | None, key: KeyFrom, **said: Any) -> Options:
        """Return what was said, checked; the pipeline must have something to run."""
        name = check_name(batch if batch is not None else self.name, "batch")
        if not self.stages:
            raise UsageError(f"pipeline {self.name!r} has no stages: define one with @{self.name}.stage")
        return Options.check(batch=name, key=key if key is not None else self._key, **said)


def _by(actor: str, reason: str) -> Actor:
    """Return who acts from Python: this process, unless somebody is named."""
    return Actor(name=_actor(actor), reason=reason)


def _actor(actor: str) -> str:
    return actor if actor else owners.short(owners.new_owner())
