"""Requests of ours in the log of the HTTP library: without their queries, in which there may be a secret."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_here = threading.local()


class _WithoutQueries(logging.Filter):
    """Takes the query off the URLs of what this thread asks for; of other requests it changes nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(_here, "ours", False) and isinstance(record.args, tuple):
            record.args = tuple(_bare(each) for each in record.args)
        return True


_FILTER = _WithoutQueries()


@contextmanager
def queries() -> Iterator[None]:
    """While a request is sent, its query is not logged."""
    logger = logging.getLogger("httpx")
    if _FILTER not in logger.filters:
        logger.addFilter(_FILTER)
    _here.ours = True
    try:
        yield
    finally:
        _here.ours = False


def _bare(said: Any) -> Any:
    return said.copy_with(query=None) if hasattr(said, "copy_with") else said
