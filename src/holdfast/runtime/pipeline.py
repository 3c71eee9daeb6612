"""What the user defines: a pipeline of stages, and how it is run."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from holdfast.core.errors import UsageError
from holdfast.core.limits import BATCH_NAME_CHARS, END_LOOKS, STAGES, UNDO_SHARE
from holdfast.core.model import Batch
from holdfast.core.verify import Reconciliation
from holdfast.runtime import lookup
from holdfast.runtime.define.definition import Patience
from holdfast.runtime.define.policy import Breaker, Budget, Retry, Tolerance
from holdfast.runtime.define.resource import Resource, Scope, define
from holdfast.runtime.define.stage import Hooks, Stage, Where
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.events import Target, delivering, receivers
from holdfast.runtime.ingester import Changed, Identity, KeyFrom, check_identity
from holdfast.runtime.lifecycle import end
from holdfast.runtime.messages.processed import Processed
from holdfast.runtime.messages.processing import Processor
from holdfast.runtime.operate import plan, reconcile, steer
from holdfast.runtime.operate.operations import By, Result
from holdfast.runtime.operate.plan import Plan
from holdfast.runtime.operate.reconcile import sinks_among
from holdfast.runtime.operate.recover import Recovery, preview, recover
from holdfast.runtime.options import Code, Options, check_capabilities
from holdfast.runtime.report.report import Report
from holdfast.runtime.run import Run
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.sources.base import Source
from holdfast.runtime.text import Duration
from holdfast.runtime.verify.calls import here
from holdfast.runtime.verify.recheck import Level
from holdfast.runtime.working import remote
from holdfast.runtime.working.interrupts import Signals
from holdfast.stores import owners
from holdfast.stores.base import Store
from holdfast.stores.open import capabilities_of, is_there, open_store, path_of

Function = Callable[..., Any]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
STAGE_OPTIONS = frozenset({"name", "retry", "sink", "timeout", "concurrency", "executor", "metrics", "breaker"})


class Pipeline:
    """Stages in the order they are defined, a store to remember what they did, and perhaps a source.

    >>> book = Pipeline("book", store="memory:")
    >>> @book.stage
    ... def shout(word: str) -> str:
    ...     return word.upper()
    >>> report = book.run(["a", "b"], progress=False)
    >>> sorted(result.output for result in report.results())
    ['A', 'B']
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | Path | Store | None = None,
        source: Iterable[Any] | Function | None = None,
        key: KeyFrom = None,
        orphan_after: Duration = "2h",
        dead_after: Duration = "7d",
        events: Sequence[Target] | Target = (),
        allow_empty: bool = False,
    ) -> None:
        self.allow_empty = allow_empty
        self.name = check_name(name, "pipeline")
        self.patience = Patience.check(orphan_after, dead_after)
        self.receivers = receivers(events)
        self.stages: list[Stage] = []
        self.resources: dict[str, Resource] = {}
        self.hooks = Hooks(f"pipeline {name!r}")
        self._where = store
        self._store: Store | None = None
        self._store_pid = 0
        self._source = source
        self._key = key

    # -- defining -----------------------------------------------------------------------------------------------

    @overload
    def stage(self, function: Function, /) -> Stage: ...

    @overload
    def stage(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        sink: Sink | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        executor: Where | None = None,
        metrics: type[BaseModel] | None = None,
        breaker: Breaker | bool | None = None,
    ) -> Callable[[Function], Stage]: ...

    def stage(self, function: Function | None = None, **options: Any) -> Stage | Callable[[Function], Stage]:
        """Make a function the next stage. Defining a stage of the same name again replaces it, as in a notebook."""
        unknown = set(options) - STAGE_OPTIONS
        if unknown:
            raise UsageError(f"stage({', '.join(sorted(unknown))}=…): a stage takes {', '.join(sorted(STAGE_OPTIONS))}")
        if function is None:
            return lambda wrapped: self._add(Stage(wrapped, **options))
        if not callable(function):
            raise UsageError(f"stage({function!r}): use @{self.name}.stage on a function, or give options by name")
        return self._add(Stage(function, **options))

    @overload
    def resource(self, function: AnyFunction, /) -> AnyFunction: ...

    @overload
    def resource(self, *, name: str | None = None, scope: Scope = "run") -> Callable[[AnyFunction], AnyFunction]: ...

    def resource(self, function: Any = None, *, name: str | None = None, scope: Scope = "run") -> Any:
        """Make a function the opener of something that stages are handed by the name of a parameter. Where it yields
        that, the rest of it closes it. Defining one of the same name again replaces it, as in a notebook."""

        def register(given: Any) -> Any:
            made = define(given, name, scope)
            self.resources[made.name] = made
            return given

        return register if function is None else register(function)

    def source(self, function: Function) -> Function:
        """Name the function that gives the items, so that `run()` needs none."""
        self._source = function
        return function

    def before(self, function: Function) -> Function:
        """Call a function when a run begins."""
        return self.hooks.before.add(function)

    def after(self, function: Function) -> Function:
        """Call a function with the report when the batch is complete."""
        return self.hooks.after.add(function)

    def on_failure(self, function: Function) -> Function:
        """Call a function with every item that is buried, in whatever stage."""
        return self.hooks.on_failure.add(function)

    def on_event(self, function: Function) -> Function:
        """Call a function with every event of this pipeline's batches, as a CloudEvent: at least once, in order."""
        self.receivers += receivers(function)
        return function

    def _add(self, stage: Stage) -> Stage:
        check_name(stage.name, "stage")
        names = [known.name for known in self.stages]
        for known in [known for known in self.stages if known.name != stage.name and known.sink is not None]:
            if stage.sink is not None and known.describe()["sink"] == stage.sink.describe():
                raise UsageError(f"stages {known.name!r} and {stage.name!r} would write to the same files")
        if stage.name in names:
            self.stages[names.index(stage.name)] = stage
        elif len(self.stages) >= STAGES:
            raise UsageError(f"pipeline {self.name!r} has {STAGES} stages, the most there can be")
        else:
            self.stages.append(stage)
        return stage

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, items: Iterable[Any] | None = None, batch: str | None = None, key: KeyFrom = None, workers: int = 16,
            budget: Budget | None = None, tolerate: int | str | Tolerance = 0,
            deadline: Duration | datetime | None = None, until: Duration | datetime | None = None,
            lease: Duration = "30s", verify: Level = "quick", executor: Executor | Where | None = None,
            progress: bool | Callable[[Any], None] | None = None, identity: Identity = "key",
            changed: Changed = "refuse", undo: int | str = UNDO_SHARE,
            events: Sequence[Target] | Target = (), code: Code | None = None,
            seal: bool = False, heartbeat: Duration | None = None,
            signals: Signals = "raise", patience: Duration = "5m",
            allow_empty: bool | None = None) -> Report:  # fmt: skip
        """Run the batch, or continue it: nothing that is finished is done again.

        Without items, the pipeline's own source is read; where it has none, what is stored is finished. Ctrl-C drains
        what is in flight and then raises `Interrupted`, unless `signals` tells otherwise.
        """
        if remote.in_worker():
            raise UsageError(
                f'{self.name}.run() was called in a worker process: put it under `if __name__ == "__main__":`'
            )
        options = self._options(
            batch, key, workers=workers, budget=budget, tolerate=tolerate, deadline=deadline, lease=lease,
            verify=verify, executor=executor, progress=progress, identity=identity, changed=changed, code=code,
            undo=undo, seal=seal, until=until, heartbeat=heartbeat, signals=signals, patience=patience,
            allow_empty=self.allow_empty if allow_empty is None else allow_empty,
        )  # fmt: skip
        if here.batch == (self.name, options.batch):
            raise UsageError(f"batch {options.batch!r} was run by one of its own handlers: it would wait for itself")
        everybody = [*self.receivers, *receivers(events)]
        check_capabilities(capabilities_of(self._where if self._store is None else self._store), options, everybody)
        with delivering(lambda: self.store, self.name, everybody, options.deadline):
            run = Run(self, options)
            report = run.go(self._items(items))
        run.interrupts.pass_on(report)
        return report

    def plan(self, items: Iterable[Any] | None = None, batch: str | None = None, key: KeyFrom = None, workers: int = 16,
             verify: Level = "quick", identity: Identity = "key", changed: Changed = "refuse",
             code: Code | None = None) -> Plan:  # fmt: skip
        """What a run would do with every item, and why, with a forecast of time and money. Nothing is changed."""
        options = self._options(
            batch, key, workers=workers, verify=verify, identity=identity, changed=changed, code=code
        )
        Resources(self)  # what a run would refuse, its plan refuses
        return plan.make_plan(self, options, self._items(items))

    def process(self, item: Any, batch: str | None = None, key: KeyFrom = None,
                deadline: Duration | datetime | None = None, lease: Duration = "30s",
                changed: Changed = "refuse") -> Processed:  # fmt: skip
        """Handle one message: admit the item by its key, and bring it through the stages here and now.

        Handed over again, it resumes where it was; once it is finished, it is answered from the store.
        """
        with self.processor(batch, key, deadline=deadline, lease=lease, changed=changed) as processor:
            return processor.process(item)

    def processor(self, batch: str | None = None, key: KeyFrom = None, *, deadline: Duration | datetime | None = None,
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
        compare = partial(reconcile.compare_with_pipeline, self, named, source, key if key is not None else self._key,
                          full=full, given=items is not None)  # fmt: skip
        looks = 1 if isinstance(source, Iterator) else END_LOOKS
        return end.conclude_end(self.store, named, compare, actor=owners.new_owner(), looks=looks)

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
        """Hand out nothing more: workers stop at their next checkpoint, and no run continues before `resume`."""
        steer.pause(self.store, self._known(batch), _by(actor, reason))

    def resume(self, batch: str | None = None, *, reason: str, actor: str = "") -> None:
        """Let a paused batch continue: the next run does."""
        steer.resume(self.store, self._known(batch), _by(actor, reason))

    def cancel(self, batch: str | None = None, *, reason: str, actor: str = "", at_once: bool = False) -> Result:
        """Call a batch off, for good. What is in flight is finished or left at a checkpoint; with `at_once` its owners
        are fenced off instead."""
        return steer.cancel(self.store, self._known(batch), _by(actor, reason), at_once=at_once)

    def _known(self, batch: str | None) -> Batch:
        return lookup.batch_named(self.store, check_name(batch if batch is not None else self.name, "batch"))

    def results(self, batch: str | None = None) -> Iterator[Any]:
        """The results of a batch, in the order of its items: `.key` and `.output`, validated."""
        return self.report(batch).results()

    def report(self, batch: str | None = None) -> Report:
        """How the batch stands, without running anything."""
        return Report.of(self, check_name(batch if batch is not None else self.name, "batch"))

    def recover(
        self, items: Iterable[Any] | None = None, *, by: By, batch: str | None = None, key: KeyFrom = None,
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

    @property
    def store(self) -> Store:
        """The pipeline's store, opened when it is first needed."""
        if self._store is None or self._store_pid != os.getpid():
            self._store = open_store(self._where)
            self._store_pid = os.getpid()
        return self._store

    @property
    def store_named(self) -> str | None:
        """The store as the code names it, for commands that can be pasted; None where the default holds."""
        named = isinstance(self._where, str | Path) and not str(self._where).startswith("memory:")
        return str(self._where) if named else None

    def store_if_there(self) -> Store | None:
        """The pipeline's store, or None where there is none yet: nothing is made."""
        if self._store is None and not is_there(self._where):
            return None
        return self.store

    @property
    def store_path(self) -> Path | None:
        """The file of the pipeline's store, which need not be there or be whole; None where it has none."""
        return path_of(self._where)

    @property
    def store_name(self) -> str | None:
        """The store as the definition names it, for people; None where it says nothing, or nobody else can open it."""
        named = str(self._where) if isinstance(self._where, str | Path) else None
        return None if named is None or named.startswith("memory:") else named

    def items(self) -> Iterable[Any]:
        """The items of its own source, read again; none where it has no source."""
        found = self._items(None)
        return () if found is None else found

    @property
    def has_source(self) -> bool:
        """Whether the pipeline says itself where its items come from."""
        return self._source is not None

    def use_store(self, where: str | Path | Store) -> None:
        """Keep the state elsewhere than the definition says; the command's `--store` does this."""
        self._where, self._store = where, None

    def _options(self, batch: str | None, key: KeyFrom, **said: Any) -> Options:
        """What was said, checked; the pipeline must have something to run."""
        name = check_name(batch if batch is not None else self.name, "batch")
        if not self.stages:
            raise UsageError(f"pipeline {self.name!r} has no stages: define one with @{self.name}.stage")
        return Options.check(batch=name, key=key if key is not None else self._key, **said)

    def _items(self, items: Iterable[Any] | None) -> Iterable[Any] | None:
        found = items if items is not None else self._source
        if callable(found) and not hasattr(found, "__iter__"):
            found = found()
        if found is None:
            return None
        if inspect.isasyncgen(found):
            raise UsageError(f"the source of pipeline {self.name!r} is async: give a plain generator")
        if isinstance(found, str | bytes | dict) or not isinstance(found, Iterable):
            raise UsageError(
                f"the items of pipeline {self.name!r} are a {type(found).__name__}: give a list, a generator or a "
                "source"
            )
        if hasattr(found, "columns") and not isinstance(found, Source):
            raise UsageError(
                f"the items of pipeline {self.name!r} are a {type(found).__name__}, which hands out its columns: give "
                'its rows, such as frame.to_dict("records") of pandas or frame.iter_rows(named=True) of polars'
            )
        return found


def check_name(name: str, what: str) -> str:
    """A name people can read and type; refused with the reason otherwise."""
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise UsageError(f"{what} name {name!r}: give some text without blanks around it")
    if len(name) > BATCH_NAME_CHARS or any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise UsageError(
            f"{what} name {name[:40]!r}…: at most {BATCH_NAME_CHARS} characters, none of them control characters"
        )
    return name


def _by(actor: str, reason: str) -> By:
    """Who acts from Python: this process, unless somebody is named."""
    return By(actor=_actor(actor), reason=reason)


def _actor(actor: str) -> str:
    return actor if actor else owners.short(owners.new_owner())
