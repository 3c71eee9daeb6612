"""One file per question. Each has `case(size)`; the order here is the order of the report."""

from collections.abc import Callable

from bench.case import Case, Size
from bench.cases import (
    alone,
    chunks,
    files,
    first,
    growth,
    looks,
    memory,
    reconcile,
    resume,
    scan,
    syncs,
    throughput,
    waiting,
)

CASES: dict[str, Callable[[Size], Case]] = {
    "throughput": throughput.case,
    "syncs": syncs.case,
    "alone": alone.case,
    "waiting": waiting.case,
    "growth": growth.case,
    "chunks": chunks.case,
    "resume": resume.case,
    "first": first.case,
    "memory": memory.case,
    "files": files.case,
    "reconcile": reconcile.case,
    "scan": scan.case,
    "looks": looks.case,
}
