"""The first 447 pages of Moby-Dick, read from scans and corrected by a language model, for exactly $5.00.

    python examples/book/app.py            # kill it whenever you like; the same command goes on where it was

The engine and the model are pretend (`service.py`): no network, no account, the same on every run.
"""

import sys
from pathlib import Path

from pydantic import BaseModel

import holdfast as hf

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # so that `service` is found from wherever this file is loaded
import service  # noqa: E402


class Page(BaseModel):
    number: int
    image: str


class Text(BaseModel):
    number: int
    text: str


class Quality(BaseModel):
    corrections: int
    confidence: float


book = hf.Pipeline("book", source=hf.JsonLines(HERE / "pages.jsonl"))


@book.stage
def ocr(page: Page) -> Text:
    return Text(number=page.number, text=service.read_scan(page.number, page.image))


@book.stage(
    retry=hf.Retry(attempts=5, within="15m", wait=("0.2s", "1s")),
    sink=hf.Files("out/page_{key:04d}.json"),
    metrics=Quality,
)
async def correct(text: Text, ctx: hf.Context) -> Text:
    reply = await service.correct(
        text.number,
        text.text,
        idempotency_key=ctx.idempotency_key,
        attempt=ctx.attempt,
    )
    ctx.spend(usd=reply.cost, tokens=reply.tokens, model=reply.model, usage=reply.usage)
    ctx.measure(corrections=reply.corrections, confidence=reply.confidence)
    return Text(number=text.number, text=reply.text)


@correct.verify
def a_full_page(out: Text) -> bool:
    return len(out.text.split()) >= 100


if __name__ == "__main__":
    report = book.run(batch="moby-dick", key="number", workers=16)
    print(report)
    raise SystemExit(report.exit_code)
