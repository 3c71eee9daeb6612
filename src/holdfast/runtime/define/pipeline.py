"""The definition of a pipeline: stages in order, resources, hooks, a store and an optional source."""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, overload

from pydantic import BaseModel

from holdfast.core.errors import UsageError
from holdfast.core.limits import BATCH_NAME_CHARS, STAGES
from holdfast.runtime.define.decorators import (
    AfterHook,
    AnyFunction,
    BeforeHook,
    FailureHook,
    ItemSource,
    Listener,
    P,
    R,
)
from holdfast.runtime.define.definition import Patience
from holdfast.runtime.define.options import KeyFrom
from holdfast.runtime.define.policy import Breaker, Retry
from holdfast.runtime.define.resource import Resource, Scope, define
from holdfast.runtime.define.stage import Hooks, Stage, Where
from holdfast.runtime.events import Target, receivers
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.sources.base import Source
from holdfast.runtime.text import Duration
from holdfast.stores.base import Store
from holdfast.stores.open import is_there, open_store, path_of, preload

Function = Callable[..., Any]
STAGE_OPTIONS = frozenset({"name", "retry", "sink", "timeout", "concurrency", "executor", "metrics", "breaker"})


class PipelineDefinition:
    """The definition of a pipeline, as runs, reports and operators use it."""

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
        self.home: Any = self
        """The object that worker processes look for at the top of a module: itself, or the scan that it belongs to."""
        self.receivers = receivers(events)
        self.stages: list[Stage] = []
        self.resources: dict[str, Resource] = {}
        self.hooks = Hooks(f"pipeline {name!r}")
        self._store: Store | None = None
        self._store_pid = 0
        self.use_store(store)
        self._source = source
        self._key = key

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {' → '.join(stage.name for stage in self.stages) or 'no stages yet'}>"

    @overload
    def stage(self, function: Callable[P, R], /) -> Stage[P, R]: ...

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
    ) -> Callable[[Callable[P, R]], Stage[P, R]]: ...

    def stage(
        self, function: Callable[P, R] | None = None, **options: Any
    ) -> Stage[P, R] | Callable[[Callable[P, R]], Stage[P, R]]:
        """Make a function the next stage; a stage of the same name is replaced, as in a notebook.

        The function takes `(value)` or `(value, ctx)`, and resources by name. The annotations of its first parameter
        and of its return value are its schemas.

        Args:
            name: The name of the stage in reports and in the journal; by default that of the function.
            retry: How often, for how long and for how much money an item is tried, an `hf.Retry`.
            sink: Where outputs go, such as `hf.Files(…)`; by default the store.
            timeout: The longest that one attempt may take. A timeout is a transient failure.
            concurrency: How many handlers of this stage may run at the same time; by default `workers`.
            executor: `"threads"` (the default) or `"processes"`; async stages run on the event loop.
            metrics: A pydantic model that the values of `ctx.measure()` must satisfy.
            breaker: When the stage pauses, an `hf.Breaker`; False for never.
        """
        unknown = set(options) - STAGE_OPTIONS
        if unknown:
            raise UsageError(f"stage({', '.join(sorted(unknown))}=…): a stage takes {', '.join(sorted(STAGE_OPTIONS))}")
        if function is None:
            return lambda wrapped: self._add(Stage(wrapped, **options))
        if not callable(function):
            raise UsageError(f"stage({function!r}): use @{self.name}.stage on a function, or pass options by name")
        return self._add(Stage(function, **options))

    @overload
    def resource(self, function: AnyFunction, /) -> AnyFunction: ...

    @overload
    def resource(self, *, name: str | None = None, scope: Scope = "run") -> Callable[[AnyFunction], AnyFunction]: ...

    def resource(self, function: Any = None, *, name: str | None = None, scope: Scope = "run") -> Any:
        """Make a function the opener of a resource: stages receive it as the parameter of that name. If the function
        is a generator, the code after its `yield` closes the resource.

        Args:
            name: The name of the parameter; by default that of the function.
            scope: `"run"`, `"process"` or `"thread"`: how often it is opened.
        """

        def register(given: Any) -> Any:
            made = define(given, name, scope)
            self.resources[made.name] = made
            return given

        return register if function is None else register(function)

    def source(self, function: ItemSource) -> ItemSource:
        """Register the function that returns the items, so that `run()` needs none."""
        self._source = function
        return function

    def before(self, function: BeforeHook) -> BeforeHook:
        """Register a function to be called with the name of the batch when a run begins."""
        return self.hooks.before.add(function)

    def after(self, function: AfterHook) -> AfterHook:
        """Register a function to be called with the report when the batch is complete; not after an interruption or a
        pause."""
        return self.hooks.after.add(function)

    def on_failure(self, function: FailureHook) -> FailureHook:
        """Register a function to be called with the `hf.DeadLetter` of each item that this process buries, once that is
        durable. The event `item.dead` covers dead letters of all processes and commands."""
        return self.hooks.on_failure.add(function)

    def on_event(self, function: Listener) -> Listener:
        """Register a function to be called with each event of this pipeline's batches, a CloudEvent: at least once, in
        order."""
        self.receivers += receivers(function)
        return function

    def _add(self, stage: Stage[P, R]) -> Stage[P, R]:
        check_name(stage.name, "stage")
        names = [known.name for known in self.stages]
        for known in [known for known in self.stages if known.name != stage.name and known.sink is not None]:
            if stage.sink is not None and known.describe()["sink"] == stage.sink.describe():
                raise UsageError(
                    f"stages {known.name!r} and {stage.name!r} would write to the same files: use different file names"
                )
        if stage.name in names:
            self.stages[names.index(stage.name)] = stage
        elif len(self.stages) >= STAGES:
            raise UsageError(f"pipeline {self.name!r} has {STAGES} stages, which is the most allowed")
        else:
            self.stages.append(stage)
        return stage

    @property
    def store(self) -> Store:
        """The pipeline's store, opened on first use."""
        if self._store is None or self._store_pid != os.getpid():
            self._store = open_store(self._where)
            self._store_pid = os.getpid()
        return self._store

    def store_if_there(self) -> Store | None:
        """Return the pipeline's store, or None if there is none yet; nothing is created."""
        if self._store is None and not is_there(self._where):
            return None
        return self.store

    @property
    def store_path(self) -> Path | None:
        """The file of the pipeline's store, which need not be there or be whole; None where it has none."""
        return path_of(self._where)

    def items(self) -> Iterable[Any]:
        """Yield the items of its own source, read again; none where it has no source."""
        found = self._items(None)
        return () if found is None else found

    @property
    def has_source(self) -> bool:
        """Whether the pipeline has a source of its own."""
        return self._source is not None

    def use_store(self, where: str | Path | Store | None) -> None:
        """Keep the state in another store than the one in the definition, as the command's `--store` does."""
        self._where, self._store = where, None
        preload(where)
        named = isinstance(where, str | Path) and not str(where).startswith("memory:")
        self.store_name = str(where) if named else None
        """The name of the store, for commands that can be pasted; None for the default store, or one that another
        process cannot open."""

    def _items(self, items: Iterable[Any] | None) -> Iterable[Any] | None:
        found = items if items is not None else self._source
        if callable(found) and not hasattr(found, "__iter__"):
            found = found()
        if found is None:
            return None
        if inspect.isasyncgen(found):
            raise UsageError(f"the source of pipeline {self.name!r} is async: pass a plain generator")
        if isinstance(found, str | bytes | dict) or not isinstance(found, Iterable):
            raise UsageError(
                f"the items of pipeline {self.name!r} are a {type(found).__name__}: pass a list, a generator or a "
                "source"
            )
        if hasattr(found, "columns") and not isinstance(found, Source):
            raise UsageError(
                f"the items of pipeline {self.name!r} are a {type(found).__name__}, which yields its columns: pass "
                'its rows, such as frame.to_dict("records") of pandas or frame.iter_rows(named=True) of polars'
            )
        return found


def check_name(name: str, what: str) -> str:
    """Return the name if it can be read and typed; raise UsageError otherwise."""
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise UsageError(f"{what} name {name!r}: pass text without blanks at its ends")
    if len(name) > BATCH_NAME_CHARS or any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise UsageError(
            f"{what} name {name[:40]!r}…: at most {BATCH_NAME_CHARS} characters, none of them control characters"
        )
    return name
