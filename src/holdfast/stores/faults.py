"""Named points at every durable step, where a test may kill, stop or fail the process. They cost nothing when unarmed.

`HOLDFAST_FAULT="commit.written:3:kill"` arms the third time the point is reached, in any process that inherits the
variable. Modes: `kill` (SIGKILL to itself), `stop` (SIGSTOP to itself), `raise` (an OSError with EIO).
"""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS: dict[str, str] = {
    "open_batch.before": "before the batch is written",
    "open_batch.written": "the batch is written, the transaction is open",
    "open_batch.after": "the batch is durable, the caller does not know it yet",
    "add_items.before": "a group of items is ready, nothing is written",
    "add_items.written": "items, keys and entry are written, the transaction is open",
    "add_items.after": "the group is durable, the caller does not know it yet",
    "claim.before": "a worker is about to claim",
    "claim.written": "the grant is written, the transaction is open",
    "claim.after": "the grant is durable, the worker does not know it yet",
    "stage.before": "the handler is about to run",
    "stage.after": "the handler has returned, nothing is recorded",
    "sink.temp": "the output is in a temporary file, not yet synced",
    "sink.staged": "the staged output is durable, the commit is not",
    "commit.before": "outcomes are settled, nothing is written",
    "commit.begun": "the transaction is open, nothing is written in it",
    "commit.outputs": "outputs and places are written, the chunk is not",
    "commit.written": "everything is written, the transaction is open",
    "commit.after": "the commit is durable, the worker does not know it yet",
    "sink.published": "the output has its final name",
    "renew.before": "the heartbeat is about to renew",
    "renew.written": "longer leases are written, the transaction is open",
    "renew.after": "the leases are renewed",
    "act.before": "an operator's act is decided, nothing is written",
    "act.written": "the act is written, the transaction is open",
    "act.after": "the act is durable, the caller does not know it yet",
    "amend.before": "a batch is about to be amended, nothing is written",
    "steer.written": "the new course is written, the transaction is open",
    "steer.after": "the new course is durable, the caller does not know it yet",
    "seal.before": "a batch is about to be sealed",
    "seal.written": "the seal is written, the transaction is open",
    "seal.after": "the seal is durable, the caller does not know it yet",
    "reopen.written": "the seal is lifted, the transaction is open",
    "reopen.after": "the batch is open again",
    "delivered.written": "the position of a receiver is written, the transaction is open",
    "delivered.after": "the position of a receiver is durable",
    "note.written": "an entry of the batch is written, the transaction is open",
    "note.after": "an entry of the batch is durable",
    "migrate.statement": "one statement of a migration has run",
    "migrate.after": "a migration is durable",
    "bucket.sealing": "a seal on a bucket has begun, no chunk has it yet",
    "bucket.staged": "an object of a directory bucket is in a temporary file, synced",
    "bucket.named": "the object has its name, the folder is not synced",
    "bucket.durable": "the object is durable under its name",
}

MODES = ("kill", "stop", "raise")
AMENDMENTS = {"opened": "open_batch", "steered": "steer", "sealed": "seal", "reopened": "reopen"}
"""The points of amendments by the kind of their entry; those of all others are `note.…`."""
NOTE = "note"

Hook = Callable[[str], object]
unarmed: Hook = len  # the cheapest call without an effect

reach: Hook = unarmed
"""Called as `faults.reach("commit.before")` at a durable step; does nothing unless a test has armed it. A loop that
passes points very often checks once whether it is `unarmed`."""


def arm(hook: Hook | None) -> None:
    """Call `hook(point)` at every point from now on; None disarms."""
    global reach  # noqa: PLW0603 - one hook for the process is the point
    reach = unarmed if hook is None else hook


@contextmanager
def overheard(hook: Hook) -> Iterator[None]:
    """Call `hook(point)` as well at every point that is reached in this context."""
    before = reach

    def both(point: str) -> None:
        before(point)
        hook(point)

    arm(both)
    try:
        yield
    finally:
        arm(before)


def parse(spec: str) -> Hook:
    """Return the hook for `point:hit:mode`, such as `commit.written:3:kill`."""
    said = spec.split(":", 2)
    point, hit, mode = (*said, *("", "1", "kill")[len(said) :])
    if point not in POINTS or mode not in MODES or not hit.isdigit() or int(hit) < 1:
        raise ValueError(
            f"HOLDFAST_FAULT={spec!r}: write point:hit:mode, with a point from `holdfast faults` and a mode of "
            f"{', '.join(MODES)}"
        )
    left = int(hit)

    def strike(reached: str) -> None:
        nonlocal left
        if reached != point:
            return
        left -= 1
        if left == 0:
            _strike(point, mode)

    return strike


def _strike(point: str, mode: str) -> None:
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "stop":
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # os.kill would let this thread run a bit longer
    else:
        raise OSError(errno.EIO, f"injected at {point}")


if os.environ.get("HOLDFAST_FAULT"):
    arm(parse(os.environ["HOLDFAST_FAULT"]))
