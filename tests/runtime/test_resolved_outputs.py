"""An output that a person gives has to fit what its stage returns: else it is refused, or told by its name."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core import canonical
from holdfast.core.model import Batch, State
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations

from .support import run

BY = Actor(name="ann", reason="seen on paper")


class Page(BaseModel):
    text: str


def with_letter(returns: Any) -> hf.Pipeline:
    p = hf.Pipeline("p", store="state.db")

    def pay(n: int) -> Any:
        if n == 1:
            raise hf.Permanent("bad")
        return {int: n, Page: Page(text="x"), list[int]: [n], int | None: n, dict[str, date]: {}}[returns]

    pay.__annotations__["return"] = returns
    p.stage(pay)
    run(p, [0, 1, 2], batch="monday", tolerate=1)
    return p


def batch_of(p: hf.Pipeline) -> Batch:
    (found,) = p.store.batches("monday")
    return found


def dead(p: hf.Pipeline) -> int:
    return len(p.store.items(batch_of(p).id, state=State.DEAD))


@pytest.mark.parametrize(
    ("returns", "output"),
    [(int, b'"a text"'), (list[int], b'["a"]'), (int | None, b'"a"'), (dict[str, date], b'{"a": "tomorrow"}')],
)
def test_an_output_that_does_not_fit_what_the_batch_remembers_is_refused(returns: Any, output: bytes) -> None:
    p = with_letter(returns)
    with pytest.raises(hf.UsageError, match=r"does not fit stage 'pay' of batch 'monday'.*nothing was changed"):
        operations.resolve(p.store, batch_of(p), BY, "1", output=output)
    assert dead(p) == 1


def test_an_output_that_fits_is_taken() -> None:
    p = with_letter(int | None)
    assert operations.resolve(p.store, batch_of(p), BY, "1", output=b"null").changed == 1
    assert [each.output for each in p.results("monday")] == [0, None, 2]


def test_a_model_is_known_from_the_pipeline() -> None:
    p = with_letter(Page)
    with pytest.raises(hf.UsageError, match="text: Field required"):
        operations.resolve(p.store, batch_of(p), BY, "1", output=b"{}", stage=p.stages[-1])
    assert operations.resolve(p.store, batch_of(p), BY, "1", output=b'{"text": "y"}', stage=p.stages[-1]).changed == 1


def test_an_output_that_cannot_be_read_names_its_item_and_what_to_do() -> None:
    p = with_letter(Page)
    operations.resolve(p.store, batch_of(p), BY, "1", output=b"{}")
    with pytest.raises(hf.HoldfastError, match=r"item 1 of batch 'monday'.*stage 'pay'.*resolved by hand") as caught:
        list(p.results("monday"))
    assert "holdfast reset monday 1" in str(caught.value)


def test_a_run_that_undoes_what_a_person_gave_says_so() -> None:
    p = with_letter(Page)
    operations.resolve(p.store, batch_of(p), BY, "1", output=b"{}")
    report = run(p, [0, 1, 2], batch="monday", tolerate=1, verify="full")
    assert report.this_run.rewound == 1
    (note,) = [each for each in report.warnings if "by hand" in each]
    assert "item 1" in note
    assert "Field required" in note


def scanned() -> hf.Scan:
    Path("stock.csv").write_text("qty,price\n" + "2,0.10\n" * 4 + "no,0.10\n" + "1,0.30\n" * 3)
    scan = hf.Scan("stock", hf.Csv("stock.csv"), store="state.db", isolate=True, retry=hf.Retry(attempts=1))

    def add(rows: list[dict[str, str]], acc: Any) -> Any:
        return acc + sum(int(row["qty"]) * Decimal(row["price"]) for row in rows)

    add.__annotations__["acc"] = Decimal
    scan.handler(initial=Decimal())(add)

    @scan.converge
    def total(parts: list[Decimal]) -> Decimal:
        return sum(parts, Decimal())

    scan.run("monday")
    return scan


def buried(scan: hf.Scan) -> str:
    (row,) = scan.pipeline.store.items(batch_of(scan.pipeline).id, state=State.DEAD)
    return str(row.key)


def test_a_bare_number_among_decimals_is_refused_with_the_right_spelling() -> None:
    scan = scanned()
    store, batch = scan.pipeline.store, batch_of(scan.pipeline)
    for output in (b"0.40", b'"0.40"'):
        with pytest.raises(hf.UsageError, match=r'write \{"\$decimal": "0\.40?"\}.*nothing was changed'):
            operations.resolve(store, batch, BY, buried(scan), output=output)
    with pytest.raises(hf.UsageError, match="nothing was changed"):
        operations.resolve(store, batch, BY, buried(scan), output=b'{"$decimal": "many"}')
    assert operations.resolve(store, batch, BY, buried(scan), output=b'{"$decimal": "0.40"}').changed == 1
    assert scan.run("monday").result == Decimal("2.10")


@pytest.mark.parametrize("output", [b"0.40", b'"0.40"', b'{"$decimal": "0.40"}'])
def test_with_the_scan_at_hand_the_output_becomes_what_its_handler_accumulates(output: bytes) -> None:
    scan = scanned()
    store, batch = scan.pipeline.store, batch_of(scan.pipeline)
    n = store.items(batch.id, state=State.DEAD)[0].n
    with pytest.raises(hf.UsageError, match=r"accumulator.*nothing was changed"):
        operations.resolve(store, batch, BY, buried(scan), output=b'"many"', stage=scan.pipeline.stages[0])
    operations.resolve(store, batch, BY, buried(scan), output=output, stage=scan.pipeline.stages[0])
    (stored,) = store.outputs(batch.id, lo=n, hi=n + 1)
    assert stored.data is not None
    assert canonical.decode_typed(stored.data) == Decimal("0.40")
