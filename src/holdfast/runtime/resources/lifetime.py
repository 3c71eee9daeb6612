"""The life of one resource: opened by its function, closed by the rest of that, where it yields."""

import asyncio
from collections.abc import Generator
from typing import Any

from holdfast.core.errors import Defer, ResourceError, Transient, UsageError
from holdfast.runtime.checking.asking import Asker
from holdfast.runtime.event_loop import EventLoop
from holdfast.runtime.resources.definition import Resource

AS_THEY_ARE = (UsageError, Transient, Defer)
"""Errors that a function raises to say what its trouble means for the run."""


class Held:
    """A value that a plain function returned: there is nothing to close."""

    home: EventLoop | None = None

    def __init__(self, value: Any) -> None:
        self.value = value

    def close(self, seconds: float) -> None:
        """End it, within that time; raises what goes wrong."""

    def close_here(self) -> None:
        """End it on this thread, which it belongs to."""


class Yielded(Held):
    """A value that a generator yielded."""

    def __init__(self, resource: Resource, generator: Generator[Any, None, None]) -> None:
        self._resource, self._generator = resource, generator
        try:
            super().__init__(next(generator))
        except StopIteration:
            raise UsageError(f"{resource.what} ended without a yield: it has nothing to hand over") from None

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
        raise UsageError(f"{self._resource.what} yields a second time: it is opened once, and then closed")


class OnLoop(Held):
    """A value that a coroutine made. One coroutine on the loop opens it, waits, and closes it, so that what has to be
    left where it was entered is."""

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
            raise UsageError(f"{self._resource.what} ended without a yield: it has nothing to hand over") from None
        await self._closing.wait()
        try:
            await anext(made)
        except StopAsyncIteration:
            return
        raise UsageError(f"{self._resource.what} yields a second time: it is opened once, and then closed")

    async def _end(self) -> None:
        self._closing.set()
        await self._life


def begin(resource: Resource, given: dict[str, Any], home: EventLoop | None) -> Held:
    """Open a resource; raises ResourceError, or what its function raised to say more than that."""
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
            f"{resource.what} could not be opened: {type(error).__name__}: {error}. No item was begun without it and "
            "none is charged with it: see to that, then run again"
        ) from error
