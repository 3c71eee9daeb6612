"""The resources of a run, each opened by its function and closed by the rest of that function; and the resources that a
process keeps."""

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import Defer, ResourceError, Transient, UsageError
from holdfast.core.limits import CLOSE_SECONDS
from holdfast.runtime.define.calls import Asker
from holdfast.runtime.define.resource import Binding, Resource, bind, in_order, rests_on
from holdfast.runtime.event_loop import EventLoop, Loan

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition
    from holdfast.runtime.define.stage import Stage


AS_THEY_ARE = (UsageError, Transient, Defer)
"""Errors with which a resource function tells the run what its failure means."""


class Held:
    """A value that a plain function returned: there is nothing to close."""

    home: EventLoop | None = None

    def __init__(self, value: Any) -> None:
        self.value = value

    def close(self, seconds: float) -> None:
        """Close the value within that time; raises any error."""

    def close_here(self) -> None:
        """Close the value on this thread, to which it belongs."""


class Yielded(Held):
    """A value that a generator yielded."""

    def __init__(self, resource: Resource, generator: Generator[Any, None, None]) -> None:
        self._resource, self._generator = resource, generator
        try:
            super().__init__(next(generator))
        except StopIteration:
            raise UsageError(f"{resource.what} ended without a yield: it made no value") from None

    def close(self, seconds: float) -> None:
        asker = Asker()
        try:
            asker.ask(self.close_here, seconds=seconds)
        finally:
            asker.close()

    def close_here(self) -> None:
        try:
            next(self._generator)
        except StopIteration:
            return
        raise UsageError(f"{self._resource.what} yields a second time: a resource yields once, and then closes")


class OnLoop(Held):
    """A value made by a coroutine. One coroutine on the event loop opens it, waits, and closes it, so that a context is
    left in the coroutine that entered it."""

    def __init__(self, resource: Resource, given: dict[str, Any], home: EventLoop) -> None:
        self.home = home
        self._resource, self._given = resource, given
        super().__init__(home.run(self._begin()))

    def close(self, seconds: float) -> None:
        assert self.home is not None
        if not self.home.turns(seconds):
            raise TimeoutError("the event loop is blocked")
        self.home.run(self._end(), seconds)

    async def _begin(self) -> Any:
        self._closing = asyncio.Event()
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(opened), name=self._resource.what)
        await asyncio.wait([opened, self._life], return_when=asyncio.FIRST_COMPLETED)
        return opened.result() if opened.done() else await self._life

    async def _live(self, opened: "asyncio.Future[Any]") -> None:
        made = self._resource.function(**self._given)
        if not self._resource.yields:
            opened.set_result(await made)
            return
        try:
            opened.set_result(await anext(made))
        except StopAsyncIteration:
            raise UsageError(f"{self._resource.what} ended without a yield: it made no value") from None
        await self._closing.wait()
        try:
            await anext(made)
        except StopAsyncIteration:
            return
        raise UsageError(f"{self._resource.what} yields a second time: a resource yields once, and then closes")

    async def _end(self) -> None:
        self._closing.set()
        await self._life


def begin(resource: Resource, given: dict[str, Any], home: EventLoop | None) -> Held:
    """Open a resource; raises ResourceError, or an error with which its function says more."""
    try:
        if resource.is_async:
            assert home is not None
            return OnLoop(resource, given, home)
        made = resource.function(**given)
        return Yielded(resource, made) if resource.yields else Held(made)
    except AS_THEY_ARE:
        raise
    except Exception as error:
        raise ResourceError(
            f"{resource.what} could not be opened: {type(error).__name__}: {error}. No item was begun without it, and "
            "no attempt is counted: correct the cause, then run again"
        ) from error


log = logging.getLogger("holdfast.resources")


@dataclass
class _Entry:
    held: Held
    owner: "weakref.ref[PipelineDefinition]"
    users: int = 0

    def is_stale(self, resource: Resource) -> bool:
        """Return whether it cannot be requested again: it was redefined, or its pipeline is gone."""
        owner = self.owner()
        return owner is None or owner.resources.get(resource.name) is not resource


class _KeptResources:
    lock = threading.Lock()
    """Guards the entries and their users, but is never held while a resource is opened; that is what a resource's own
    lock is for."""
    entries: dict[Resource, _Entry] = {}  # noqa: RUF012 - there is one process


def take_kept(
    resource: Resource, owner: "PipelineDefinition", begin: Callable[[], Held], is_lost: Callable[[Held], bool]
) -> Held:
    """Return the value that this process keeps, opened if necessary; call `leave_kept` in the end."""
    with resource.opening:
        with _KeptResources.lock:
            entry = _KeptResources.entries.get(resource)
            if entry is not None and not is_lost(entry.held):
                entry.users += 1
                return entry.held
        entry = _Entry(begin(), weakref.ref(owner), users=1)
        with _KeptResources.lock:
            _KeptResources.entries[resource] = entry
        return entry.held


def leave_kept(resource: Resource, held: Held) -> None:
    """Stop using it. It stays open unless it cannot be requested again."""
    with _KeptResources.lock:
        entry = _KeptResources.entries.get(resource)
        if entry is not None and entry.held is held:
            entry.users -= 1
    sweep_kept()


def sweep_kept() -> None:
    """Close resources that are not in use and cannot be requested again."""
    with _KeptResources.lock:
        stale = {r: e for r, e in _KeptResources.entries.items() if not e.users and e.is_stale(r)}
        for resource in stale:
            del _KeptResources.entries[resource]
    _close(stale)


def close_kept() -> None:
    """Close everything, the last first, because the process ends. A resource that an abandoned thread still uses ends
    with the process."""
    with _KeptResources.lock:
        unused = {r: e for r, e in _KeptResources.entries.items() if not e.users}
        _KeptResources.entries = {r: e for r, e in _KeptResources.entries.items() if e.users}
    _close(unused)


def _close(entries: Mapping[Resource, _Entry]) -> None:
    for resource, entry in reversed([*entries.items()]):
        try:
            entry.held.close(CLOSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - the others must be closed, whatever the error
            log.warning("%s was not closed: %s: %s", resource.what, type(error).__name__, error)


def _forget() -> None:
    """Forget the resources of the parent in a forked child, which opens its own."""
    _KeptResources.lock = threading.Lock()
    _KeptResources.entries = {}


os.register_at_fork(after_in_child=_forget)
atexit.register(close_kept)


TURN_SECONDS = 0.5


class _Here(threading.local):
    """The resources that belong to this thread, in the order they were opened."""

    held: dict[str, Held]

    def __init__(self) -> None:
        self.held = {}


class Resources:
    """The resources of a run: opened when first needed, closed in reverse order. Names are resolved when this is
    created."""

    def __init__(self, pipeline: "PipelineDefinition", stages: "Sequence[Stage] | None" = None) -> None:
        self._pipeline, self._defined = pipeline, dict(pipeline.resources)
        self._bindings = {stage.name: self._bind(stage) for stage in (pipeline.stages if stages is None else stages)}
        for each in self._bindings.values():
            if each.names:
                self._order(each.names)  # a resource that cannot be opened is refused now
        self._held: dict[str, Held] = {}
        self._kept: dict[Resource, Held] = {}
        self._here = _Here()
        self._threads: set[int] = set()
        """Threads that have resources of their own."""
        self.loan = Loan()
        """The event loop of this run."""
        self._lock = threading.Lock()
        self._is_over = False
        self.generation = 0
        """Grows when values are replaced."""
        self.warnings: list[str] = []
        """Resources that could not be closed, and why."""

    def _bind(self, stage: "Stage") -> Binding:
        return bind(stage.parameters, self._defined, what=stage.what, pipeline=self._pipeline.name,
                            awaits=stage.awaits)  # fmt: skip

    def _order(self, names: Iterable[str]) -> list[Resource]:
        return in_order(names, self._defined, self._pipeline.name) if self._defined else []

    def of(self, stage: "Stage") -> "Handed":
        """Return the resources of a stage."""
        return Handed(self, self._bindings[stage.name])

    def scopes(self, stage: "Stage") -> set[str]:
        """Return the scopes of the resources of a stage, and of those they depend on."""
        return {each.scope for each in self._order(self._bindings[stage.name].names)}

    @property
    def home(self) -> EventLoop:
        """The event loop of this run."""
        return self.loan.home

    def lose_home(self) -> None:
        """Note that the event loop is blocked for good: resources on it are lost, and are opened again on another loop
        when needed."""
        home = self.loan.lose()
        self.generation += 1
        self._held = {name: held for name, held in self._held.items() if held.home is not home}

    # -- opening ------------------------------------------------------------------------------------------------

    def open(self, names: Iterable[str]) -> None:
        """Open resources and those they depend on, unless they are open. A thread opens its own."""
        for each in self._order(names):
            if each.scope != "thread":
                with self._lock:
                    if each.name not in self._held and not self._is_over:
                        self._held[each.name] = self._begin(each)
        if self._is_over:  # it was closed without waiting for this thread
            self._close_shared(CLOSE_SECONDS)

    def _begin(self, each: Resource) -> Held:
        given = self.values(rests_on(each, self._defined, self._pipeline.name))
        home = self.home if each.is_async else None
        if each.scope != "process" or (home is not None and home.is_private):
            return begin(each, given, home)
        held = take_kept(each, self._pipeline, lambda: begin(each, given, home),
                         lambda held: held.home is not None and held.home is not home)  # fmt: skip
        self._kept[each] = held
        return held

    def open_here(self, stage: int) -> None:
        """Open the resources of one stage, including those that belong to this thread."""
        names = self._bindings[self._pipeline.stages[stage].name].names
        self.open(names)
        self.values(names)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of resources, for this thread."""
        return {name: self._held[name].value if name in self._held else self._of_thread(name) for name in names}

    def _of_thread(self, name: str) -> Any:
        own = self._here.held
        if name not in own:
            each = self._defined[name]
            given = self.values(rests_on(each, self._defined, self._pipeline.name))
            own[name] = begin(each, given, None)
            self._threads.add(threading.get_ident())
        return own[name].value

    # -- closing ------------------------------------------------------------------------------------------------

    def leave_thread(self) -> None:
        """Close the resources that belong to this thread, which has run its last handler."""
        own, self._here.held = self._here.held, {}
        for name, held in reversed([*own.items()]):
            self._closing(self._defined[name], held.close_here)
        self._threads.discard(threading.get_ident())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close everything, the last first. A resource that does not close in time is left open, with a warning."""
        self._is_over = True
        home = self.loan.used
        if home is not None and self._threads and home.turns(seconds):
            home.soon(self.leave_thread)
        self.leave_thread()
        ends = time.monotonic() + seconds
        while self._threads and time.monotonic() < ends:
            time.sleep(0.005)
        if self._threads:
            self._warn(f"resources of {len(self._threads)} threads were not closed: their handlers are still running")
        if self._lock.acquire(timeout=min(seconds, TURN_SECONDS)):  # otherwise one hangs while it is opened
            self._lock.release()
            self._close_shared(seconds)
        if self.loan.used is not None:
            self.loan.give_back()

    def _close_shared(self, seconds: float) -> None:
        held, self._held = self._held, {}
        for name, each in reversed([*held.items()]):
            if self._defined[name] not in self._kept:
                self._closing(self._defined[name], partial(each.close, seconds))
        mine, self._kept = self._kept, {}
        for resource, each in mine.items():
            leave_kept(resource, each)

    def _closing(self, resource: Resource, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - the others must be closed, whatever the error
            self._warn(f"{resource.what} was not closed: {type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        log.warning(text)


class Handed:
    """The resources of one stage, and how a function is called with them."""

    def __init__(self, resources: Resources | None, bound: Binding) -> None:
        self.names = bound.names
        self.context = bound.context
        self.by_name = bound.by_name
        self._resources = resources
        self.is_fixed = resources is None or all(resources._defined[n].scope != "thread" for n in bound.names)
        """The resources are the same on every thread."""
        self._bound: tuple[int, Callable[..., Any]] | None = None

    def open(self) -> None:
        """Open the resources of the stage."""
        if self._resources is not None and self.names:
            self._resources.open(self.names)

    def to(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its resources bound, for this thread; raises ResourceError."""
        if not self.names:
            return function
        assert self._resources is not None
        bound, generation = self._bound, self._resources.generation
        if bound is not None and bound[0] == generation and self.is_fixed:
            return bound[1]
        made = partial(function, **self._resources.values(self.names))
        self._bound = generation, made
        return made
