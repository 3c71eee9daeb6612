"""The failure of an attempt: the outcome that an exception becomes, and its description.

All attempts are explained here, whatever made the call: a stage, a verifier, an adopter, the handler of a scan.
"""

import os
import sysconfig
import time
import traceback
from pathlib import Path

from holdfast.core import canonical
from holdfast.core.errors import Defer, HoldfastError, Signal, Skip, Transient
from holdfast.core.journal import Spend
from holdfast.core.limits import DEFERRED_LEAST, REQUEST_HINT_CHARS
from holdfast.core.model import Item
from holdfast.core.outcome import Deferred, Failed, Lost, Outcome, Skipped
from holdfast.core.retry import LONGEST_WAIT, classify, host_trouble, place_in, retry_after
from holdfast.runtime.define.calls import CheckFailed, no_answer, text_of
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.sinks.base import SinkTrouble

TRACE_CHARS = 4000
TRACE_FRAMES = 8
LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
"""The folders of Python's own modules."""
SINK_WAIT = 1.0


class InputLost(HoldfastError):
    """The input of a stage is gone."""


class Unverified(HoldfastError):
    """The handler's output did not pass its verifier."""


def explain(
    item: Item, error: BaseException, *, queued: float, seconds: float, draw: float, spend: Spend | None
) -> Outcome:
    """Return the outcome for an exception. The exception may be anything: even its text may raise."""
    if isinstance(error, SinkTrouble):
        return Deferred(item, SINK_WAIT, f"{error}; check the disk", queued, seconds, spend, True)
    if remedy := _host_trouble(error):
        why = f"item {item.key!r} met {type(error).__name__}: {text_of(error)}; {remedy}"
        return Deferred(item, 0.0, why, queued, seconds, spend, True)
    if isinstance(error, InputLost):
        return Lost(item, item.place.stage - 1, str(error))
    if isinstance(error, CheckFailed):
        return _unchecked(item, error, queued=queued, seconds=seconds, draw=draw, spend=spend)
    if isinstance(error, Skip):
        return Skipped(item, text_of(error), queued, seconds, spend)
    if isinstance(error, Defer):
        return Deferred(item, error.seconds, text_of(error), queued, seconds, spend)
    try:
        transient, code = _kind_of(error)
        code, after = str(code)[:REQUEST_HINT_CHARS], _wait_of(error)
        told = retry_after(error, time.time()) if transient and not isinstance(error, Signal) else None
    except Exception:  # noqa: BLE001 - attributes of a user's exception may raise: then it is not transient
        transient, code, after, told = False, type(error).__name__, None, None
    if told is not None:
        wait = max(told, DEFERRED_LEAST)
        why = f"{code}: the service asked for a wait of {wait:,.0f} s: {text_of(error)}"
        return Deferred(item, wait, why, queued, seconds, spend, told=True)
    trace = "" if isinstance(error, Signal | Invalid) else _trace(error)
    return Failed(item, transient, code, text_of(error), draw, queued, seconds, after, trace, spend)


def _unchecked(
    item: Item, failed: CheckFailed, *, queued: float, seconds: float, draw: float, spend: Spend | None
) -> Outcome:
    """Return the outcome if a verifier or an adopter gave no answer. Its exception is classified like that of a
    handler."""
    error = failed.error
    if isinstance(error, Defer):
        return Deferred(item, error.seconds, f"{failed.what}: {text_of(error)}", queued, seconds, spend)
    outcome = explain(item, error, queued=queued, seconds=seconds, draw=draw, spend=spend)
    if isinstance(outcome, Deferred) and outcome.trouble:
        return outcome
    transient, after, trace = False, None, _trace(error)
    if isinstance(outcome, Failed):
        transient, after, trace = outcome.transient, outcome.after, outcome.trace
    text = f"{failed.what} gave no answer about item {item.key!r}: {no_answer(error)}"
    return Failed(item, transient, failed.code, text, draw, queued, seconds, after, trace, spend)


def _host_trouble(error: BaseException) -> str:
    """Return what to do about the machine if it caused the error. The exception of a check is examined by itself."""
    if isinstance(error, CheckFailed):
        return ""
    try:
        return host_trouble(error)
    except Exception:  # noqa: BLE001 - attributes of a user's exception may raise
        return ""


def _kind_of(error: BaseException) -> tuple[bool, str]:
    if isinstance(error, Invalid):
        return False, error.code
    if isinstance(error, Unverified):
        return True, "unverified"
    return classify(error)


def _wait_of(error: BaseException) -> float | None:
    """Return the least wait that the handler asked for, if it is a valid number of seconds."""
    after = error.after if isinstance(error, Transient) else None
    if isinstance(after, int | float) and 0 <= after < LONGEST_WAIT:
        return float(after)
    return None


def with_place(error: BaseException) -> str:
    """Return the text of an error and the place in the user's code where it was raised; its class is recorded
    separately, as its code."""
    at = "" if isinstance(error, Signal | Invalid) else place_in(_trace(error))
    return text_of(error) + (f" ({at})" if at else "")


def _trace(error: BaseException) -> str:
    """Return the innermost frames, oldest first; a frame of a library includes its folder."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}holdfast{os.sep}runtime{os.sep}" not in f.filename] or frames
    lines = [f"{_file(f.filename)}:{f.lineno} in {f.name}" for f in own[-TRACE_FRAMES:]]
    return canonical.storable("; ".join(lines)[:TRACE_CHARS])


def _file(name: str) -> str:
    path = Path(name)
    is_library = name.startswith(("<frozen", *LIBRARIES)) or "site-packages" in path.parts
    return f"{path.parent.name or 'python'}/{path.name}" if is_library else path.name
