"""The resources of one run: opened before its first item, handed to handlers by name, closed at its end."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.limits import CLOSE_SECONDS
from holdfast.runtime.event_loop import EventLoop, Loan
from holdfast.runtime.resources import binding, kept
from holdfast.runtime.resources.binding import Binding
from holdfast.runtime.resources.definition import Resource
from holdfast.runtime.resources.lifetime import Held, begin

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline
    from holdfast.runtime.stage import Stage

log = logging.getLogger("holdfast.resources")

TURN_SECONDS = 0.5


class _Here(threading.local):
    """The resources that belong to this thread, in the order they were opened."""

    held: dict[str, Held]

    def __init__(self) -> None:
        self.held = {}


class Resources:
    """Opened when they are first needed, closed in reverse. Names are resolved when this is made."""

    def __init__(self, pipeline: "Pipeline", stages: "Sequence[Stage] | None" = None) -> None:
        self._pipeline, self._defined = pipeline, dict(pipeline.resources)
        self._bindings = {stage.name: self._bind(stage) for stage in (pipeline.stages if stages is None else stages)}
        for each in self._bindings.values():
            self._order(each.names)  # what cannot be opened is refused now
        self._held: dict[str, Held] = {}
        self._kept: dict[Resource, Held] = {}
        self._here = _Here()
        self._threads: set[int] = set()
        """Threads that have some of their own."""
        self.loan = Loan()
        """The event loop of this run."""
        self._lock = threading.Lock()
        self._is_over = False
        self.generation = 0
        """Grows when values are replaced by others."""
        self.warnings: list[str] = []
        """What could not be closed, and why."""

    def _bind(self, stage: "Stage") -> Binding:
        return binding.bind(stage.parameters, self._defined, what=stage.what, pipeline=self._pipeline.name,
                            awaits=stage.awaits)  # fmt: skip

    def _order(self, names: Iterable[str]) -> list[Resource]:
        return binding.in_order(names, self._defined, self._pipeline.name)

    def of(self, stage: "Stage") -> "Handed":
        """Return what a stage is handed."""
        return Handed(self, self._bindings[stage.name])

    def scopes(self, stage: "Stage") -> set[str]:
        """Return how long what a stage is handed lasts, with what that rests on."""
        return {each.scope for each in self._order(self._bindings[stage.name].names)}

    @property
    def home(self) -> EventLoop:
        """The event loop of this run."""
        return self.loan.home

    def lose_home(self) -> None:
        """The event loop is blocked for good: what lives on it is lost, and opened again on another where needed."""
        home = self.loan.lose()
        self.generation += 1
        self._held = {name: held for name, held in self._held.items() if held.home is not home}

    # -- opening ------------------------------------------------------------------------------------------------

    def open(self, names: Iterable[str]) -> None:
        """Open some, and what they rest on, unless they are open. Those of a thread are opened by that thread."""
        for each in self._order(names):
            if each.scope != "thread":
                with self._lock:
                    if each.name not in self._held and not self._is_over:
                        self._held[each.name] = self._begin(each)
        if self._is_over:  # whoever closed has not waited for this
            self._close_shared(CLOSE_SECONDS)

    def _begin(self, each: Resource) -> Held:
        given = self.values(binding.rests_on(each, self._defined, self._pipeline.name))
        home = self.home if each.is_async else None
        if each.scope != "process" or (home is not None and home.is_private):
            return begin(each, given, home)
        held = kept.take(each, self._pipeline, lambda: begin(each, given, home),
                         lambda held: held.home is not None and held.home is not home)  # fmt: skip
        self._kept[each] = held
        return held

    def open_here(self, stage: int) -> None:
        """Open those of one stage, with what belongs to this thread."""
        names = self._bindings[self._pipeline.stages[stage].name].names
        self.open(names)
        self.values(names)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of some, for this thread."""
        return {name: self._held[name].value if name in self._held else self._of_thread(name) for name in names}

    def _of_thread(self, name: str) -> Any:
        own = self._here.held
        if name not in own:
            each = self._defined[name]
            given = self.values(binding.rests_on(each, self._defined, self._pipeline.name))
            own[name] = begin(each, given, None)
            self._threads.add(threading.get_ident())
        return own[name].value

    # -- closing ------------------------------------------------------------------------------------------------

    def leave_thread(self) -> None:
        """Close what belongs to this thread, which has run its last handler."""
        own, self._here.held = self._here.held, {}
        for name, held in reversed([*own.items()]):
            self._closing(self._defined[name], held.close_here)
        self._threads.discard(threading.get_ident())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close everything, the last first. What does not end in time is left alone, with a warning."""
        self._is_over = True
        home = self.loan.used
        if home is not None and self._threads and home.turns(seconds):
            home.soon(self.leave_thread)
        self.leave_thread()
        ends = time.monotonic() + seconds
        while self._threads and time.monotonic() < ends:
            time.sleep(0.005)
        if self._threads:
            self._warn(f"resources of {len(self._threads)} threads were not closed: their handlers are still at work")
        if self._lock.acquire(timeout=min(seconds, TURN_SECONDS)):  # else one hangs where it is opened
            self._lock.release()
            self._close_shared(seconds)
        self.loan.give_back()

    def _close_shared(self, seconds: float) -> None:
        held, self._held = self._held, {}
        for name, each in reversed([*held.items()]):
            if self._defined[name] not in self._kept:
                self._closing(self._defined[name], partial(each.close, seconds))
        mine, self._kept = self._kept, {}
        for resource, each in mine.items():
            kept.leave(resource, each)

    def _closing(self, resource: Resource, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - the others are to be closed, whatever it is
            self._warn(f"{resource.what} was not closed: {type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        log.warning(text)


class Handed:
    """What one stage is handed, and how it is called with that."""

    def __init__(self, resources: Resources | None, bound: Binding) -> None:
        self.names = bound.names
        self.context = bound.context
        self.by_name = bound.by_name
        self._resources = resources
        self.is_fixed = resources is None or all(resources._defined[n].scope != "thread" for n in bound.names)
        """The same on every thread."""
        self._bound: tuple[int, Callable[..., Any]] | None = None

    def open(self) -> None:
        """Open what it needs."""
        if self._resources is not None and self.names:
            self._resources.open(self.names)

    def to(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its resources in place, for this thread; raises ResourceError."""
        if not self.names:
            return function
        assert self._resources is not None
        bound, generation = self._bound, self._resources.generation
        if bound is not None and bound[0] == generation and self.is_fixed:
            return bound[1]
        made = partial(function, **self._resources.values(self.names))
        self._bound = generation, made
        return made
