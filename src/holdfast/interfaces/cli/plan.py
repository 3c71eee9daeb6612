"""`holdfast plan`: what a run would do and why, before anything is done."""

import contextlib
import os
import sys
from typing import Annotated, Any, Literal

import typer

from holdfast.core.errors import UsageError
from holdfast.interfaces.cli import hints, render
from holdfast.interfaces.cli.common import JsonOption, StoreOption
from holdfast.interfaces.cli.loading import load_runnable
from holdfast.runtime.plans.plan import Plan
from holdfast.runtime.scan import Scan

FINDINGS = 1


def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book.")],
    batch: Annotated[
        str | None, typer.Argument(metavar="[BATCH]", help="The batch. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="How many items at a time.")] = None,
    verify: Annotated[
        Literal["none", "quick", "full"] | None,
        typer.Option(
            "--verify",
            help="Look at recorded outputs first: not at all, whether they are there, or at all that is in them.",
        ),
    ] = None,
    changed: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--changed", help="What to do where a known key came with another payload."),
    ] = None,
    code: Annotated[
        Literal["keep", "rerun", "refuse"] | None,
        typer.Option("--code", help="The code of a stage changed since: keep what is done, or run it again."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do with every item, and why, with a forecast. Nothing is changed.

    Ends with 0, or with 1 where a run would be refused.
    """
    if store is not None:
        os.environ["HOLDFAST_STORE"] = store
    said: dict[str, Any] = {
        "batch": batch, "key": key, "workers": workers, "verify": verify, "changed": changed, "code": code,
    }  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = load_runnable(target)
        pipeline = found.pipeline if isinstance(found, Scan) else found
        if store is not None:
            pipeline.use_store(store)
        else:
            hints.remember(pipeline.store_name)
        if isinstance(found, Scan) and key is not None:
            raise UsageError(f"{target} is a scan, which takes no --key; nothing was changed")
        made = found.plan(**{name: value for name, value in said.items() if value is not None})
    if as_json:
        plain = made.as_dict()
        render.document({**plain, **{name: hints.all_pasteable(plain[name]) for name in ("obstacles", "notes")}})
    else:
        _show(made)
    raise typer.Exit(FINDINGS if made.obstacles else 0)


def _show(made: Plan) -> None:
    style = render.BAD if made.obstacles else render.FAINT if made.is_idle else render.GOOD
    render.say(f"{made.batch}: {made.headline}", style)
    if made.rows:
        rows = [
            (row.fate, f"{row.count:,}", row.reason, row.stage or "-", _keys(row.examples, row.count))
            for row in made.rows
        ]
        render.show(render.table(["would", "items", "why", "stage", "such as"], rows, right=["items"]))
    _show_forecast(made)
    for text in made.obstacles:
        render.say(f"in the way: {text}", render.BAD)
    for text in made.notes:
        render.say(f"note: {text}", render.CARE)
    render.say("Nothing was changed.", render.FAINT)


def _show_forecast(made: Plan) -> None:
    for line in made.outlook:
        render.say(line)
    busy = [each for each in made.forecast.stages if each.items]
    if made.forecast.learned_from is not None and len(busy) > 1:
        rows = [(s.stage, f"{s.items:,}", render.number(s.seconds), render.usd(s.usd)) for s in busy]
        render.show(render.table(["stage", "items", "seconds of work", "money"], rows,
                                 right=["items", "seconds of work", "money"]))  # fmt: skip


def _keys(examples: tuple[Any, ...], count: int) -> str:
    shown = ", ".join(render.one_line(str(key), 40) for key in examples)
    return f"{shown}, …" if count > len(examples) else shown
