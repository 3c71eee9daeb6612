"""Adapters for cloud functions, which may be killed at any instant and have a time limit: queue messages, and
timers."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import ResourceError, StoreError, UsageError
from holdfast.runtime.define.options import Changed, KeyFrom
from holdfast.runtime.message import Processed, Processor
from holdfast.runtime.operate import steer
from holdfast.runtime.sources.base import Malformed
from holdfast.runtime.text import Duration, seconds
from holdfast.stores.base import find_batch

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline


log = logging.getLogger("holdfast.functions")

Handler = Callable[[Any, Any], dict[str, Any]]


def lambda_handler(
    pipeline: "Pipeline",
    *,
    batch: str | None = None,
    key: KeyFrom = None,
    fail_dead: bool = False,
    changed: Changed = "refuse",
    lease: Duration = "30s",
    margin: Duration = "2s",
    expected: int | None = None,
) -> Handler:
    """Return a function `(event, context)` for AWS Lambda: SQS messages are handled one by one, timer events by a run.

    Unfinished messages are returned as `batchItemFailures`, so that the queue delivers those again, and no others.

    Args:
        pipeline: The pipeline that handles them.
        batch: The name of the batch; by default that of the pipeline.
        key: A field of the item, or a function of it.
        fail_dead: True if a dead letter counts as a failure of its message. By default it is handled, as it is
            recorded.
        changed: What to do if a known key comes with another payload: `"refuse"`, `"keep"` or `"rerun"`.
        lease: How long a claim lasts if the function dies.
        margin: How long before the function's own time limit the work ends.
        expected: How many items the batch has in total. It is recorded once; `expect` changes it later.
    """
    if not callable(getattr(pipeline, "processor", None)):
        raise UsageError(
            f"lambda_handler({type(pipeline).__name__}): messages are items of an hf.Pipeline, not of a scan: call "
            "its run() or tick() with deadline= in a function of your own"
        )
    total = None if expected is None else steer.check_total(expected)
    said: dict[str, Any] = {"changed": changed, "lease": lease}
    spare = seconds(margin, "margin")

    def handle(event: Any, context: Any = None) -> dict[str, Any]:
        left = _time_left(context, spare)
        if not isinstance(event, Mapping) or "Records" not in event:
            return _run(pipeline, batch, left)
        messages = _messages(event["Records"])
        if left is not None and left <= 0:
            return _failures([message["messageId"] for message in messages])
        try:
            with pipeline.processor(batch, key=key, deadline=left, **said) as processor:
                if total is not None and processor.batch.expected is None:
                    steer.expect(pipeline.store, processor.batch, total, actor=processor.owner)
                return _failures(_unfinished(processor, messages, fail_dead=fail_dead))
        except StoreError as error:
            log.warning("%d messages will be delivered again: %s", len(messages), error)
            return _failures([message["messageId"] for message in messages])

    return handle


def _run(pipeline: "Pipeline", batch: str | None, left: float | None) -> dict[str, Any]:
    """Continue the batch, for a timer, until the time is nearly up."""
    name = batch if batch is not None else pipeline.name
    if left is not None and left <= 0:
        return {"again": True, "state": "interrupted", "counts": {}}
    if not pipeline.has_source and find_batch(pipeline.store, name) is None:
        return {"again": False, "state": "open", "counts": {}}
    report = pipeline.run(batch=batch, deadline=left, progress=False)
    return {"again": report.run_again, "state": report.state, "counts": report.counts.as_dict()}


def _unfinished(processor: Processor, messages: Sequence[Mapping[str, Any]], *, fail_dead: bool) -> list[str]:
    """Return the ids of the messages that must be delivered again. In an ordered queue, the messages after such a
    message in its group come again as well: they must not overtake it."""
    failed: list[str] = []
    stuck: set[str] = set()
    for message in messages:
        group = (message.get("attributes") or {}).get("MessageGroupId")
        if group in stuck or not _is_handled(processor, message, fail_dead=fail_dead):
            failed.append(message["messageId"])
            if group is not None:
                stuck.add(group)
    return failed


def _is_handled(processor: Processor, message: Mapping[str, Any], *, fail_dead: bool) -> bool:
    """Return whether one message is finished. An error with it does not affect the others."""
    name = message["messageId"]
    try:
        result: Processed = processor.process(_item(message))
    except Exception as error:  # noqa: BLE001 - any error: the other messages of the event must be answered
        # The text of other errors is not logged: it may quote the message.
        why = f": {error}" if isinstance(error, StoreError | ResourceError) else ""
        log.warning("message %s will be delivered again: %s%s", name, type(error).__name__, why)
        return False
    if result.run_again:
        log.info("message %s will be delivered again: %s", name, result.state)
    return result.is_finished and not (fail_dead and result.state == "dead")


def _item(message: Mapping[str, Any]) -> Any:
    """Return the body as JSON; an invalid body becomes a dead letter, because it would be invalid the next time as
    well."""
    body = message["body"]
    try:
        return json.loads(body)
    except (ValueError, TypeError, RecursionError) as error:
        raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else repr(body).encode()
        return Malformed(raw=raw, why=f"its body is not JSON: {error}", where="a message of the queue")


def _messages(found: Any) -> list[Mapping[str, Any]]:
    """Return the messages of an event, if it has messages of a queue."""
    messages = found if isinstance(found, list) else [found]
    for each in messages:
        if not (isinstance(each, Mapping) and "body" in each and isinstance(each.get("messageId"), str)):
            raise UsageError(
                "this event has Records that are not SQS messages (a messageId and a body): subscribe the function to "
                "a queue, or call it with an event without Records"
            )
    return messages


def _failures(names: Sequence[str]) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


def _time_left(context: Any, spare: float) -> float | None:
    """Return the seconds until this call should have answered; None if the context has no limit."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    return None if ask is None else max(0.0, float(ask()) / 1000 - spare)
