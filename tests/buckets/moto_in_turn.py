"""moto with one request at a time: it judges a condition and writes in two steps, and S3 does both in one."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto import server

_turn = threading.Lock()
_run_simple = server.run_simple


def in_turn(app: Callable[..., Iterable[bytes]]) -> Callable[..., list[bytes]]:
    def answer(environ: Any, start_response: Any) -> list[bytes]:
        with _turn:
            return list(app(environ, start_response))

    return answer


def run(host: str, port: int, app: Any, **options: Any) -> None:
    _run_simple(host, port, in_turn(app), **options)


if __name__ == "__main__":
    server.run_simple = run
    server.main()
