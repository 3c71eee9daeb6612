"""A pretend OCR engine and a pretend language model that play their parts from `script.json`.

Nothing leaves this machine. The script says, page by page, how long each call takes, what it costs, and which calls
are first turned away; so every run behaves the same. The reading and the correcting are real, if simple: the scans
hold the mistakes that scanners make, and `correct` puts them right.

The provider bills when it accepts a call, not when the caller has the reply. A caller that dies in between has paid.
Name a file in HOLDFAST_DEMO_LEDGER and each accepted call appends one line to it: the provider's own account, to hold
against what Holdfast recorded. HOLDFAST_DEMO_PACE=20 makes every call twenty times slower, to have time to watch.
"""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

# ---- the OCR engine


def read_scan(number: int, image: str) -> str:
    """The text on a scanned page: the running head dropped, lines joined to paragraphs, broken words mended."""
    time.sleep(_paced(_scene(number).ocr_ms))
    _head, _, body = image.partition("\n")
    return join_lines(body.split("\n"))


def join_lines(lines: list[str]) -> str:
    """Lines as printed, joined to paragraphs; a line that is set in (verse, a note) stays a line of its own."""
    text = ""
    for line in lines:
        if not line or line.startswith(" "):
            text += "\n" + line
        elif _BROKEN_WORD.search(text):
            text = text[:-1] + line
        else:
            text += ("\n" if text.endswith("\n") or not text else " ") + line
    return text.strip("\n")


_BROKEN_WORD = re.compile(r"[A-Za-z]-$")

# ---- the language model


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model sends back, with the bill for it."""

    text: str
    corrections: int
    confidence: float
    model: str
    usage: dict[str, int]
    cost: Decimal

    @property
    def tokens(self) -> int:
        return sum(self.usage.values())


class ServiceError(Exception):
    """The provider turned the call away. Nothing was billed."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{status_code} {message}")
        self.status_code = status_code


async def correct(number: int, text: str, *, idempotency_key: str, attempt: int = 1) -> Reply:
    """Correct one page. Hard pages go to the large model. `attempt` is what HTTP clients send as a retry count."""
    scene = _scene(number)
    if 1 <= attempt <= len(scene.refusals):
        await _refuse(scene.refusals[attempt - 1])
    cost = _price(scene)
    _bill(idempotency_key, scene, cost)
    await asyncio.sleep(_paced(scene.llm_ms))
    corrected, corrections = mend(text)
    return Reply(
        text=corrected,
        corrections=corrections,
        confidence=round(1 - corrections / (len(text.split()) + 1), 4),
        model=scene.model,
        usage={"input_tokens": scene.input_tokens, "output_tokens": scene.output_tokens},
        cost=cost,
    )


def mend(text: str) -> tuple[str, int]:
    """The text with every misreading put right, and how many there were."""
    return _MISREAD.subn(_as_printed, text)


def _as_printed(match: re.Match[str]) -> str:
    wrong = match.group()
    if wrong.lower() in MISREADINGS:
        right = MISREADINGS[wrong.lower()]
        return right.capitalize() if wrong[0].isupper() else right
    return "".join(GLYPHS.get(glyph, "") for glyph in wrong)


# How worn type is read: words that look like others, and single letters that turn into something else.
MISREADINGS = {
    "tbe": "the", "tbat": "that", "tbis": "this", "tbere": "there", "tbey": "they", "tben": "then", "witb": "with",
    "wbich": "which", "wbale": "whale", "wben": "when", "wbat": "what", "bave": "have", "sbip": "ship",
    "otber": "other", "notbing": "nothing", "liis": "his", "liead": "head", "liand": "hand", "slie": "she",
    "aud": "and", "frorn": "from", "tirne": "time", "sorne": "some", "sarne": "same", "thern": "them", "hirn": "him",
    "rnan": "man", "rnen": "men", "rnore": "more", "rnost": "most", "rnust": "must", "rnight": "might",
    "cornes": "comes", "seerned": "seemed", "captaiu": "captain", "wliite": "white", "boal": "boat",
    "iuto": "into", "ouly": "only", "lhose": "those", "ofthe": "of the", "inthe": "in the", "tothe": "to the",
    "onthe": "on the", "itwas": "it was", "fromthe": "from the",
}  # fmt: skip
LONG_S = "\u017f"
GLYPHS = {"1": "l", "0": "o", LONG_S: "s", "ﬁ": "fi", "ﬂ": "fl"}
SPECKS = "·¦~^"

_MISREAD = re.compile(rf"\b(?i:{'|'.join(MISREADINGS)})\b|(?<=[A-Za-z])[01]+|[{LONG_S}ﬁﬂ]| [{SPECKS}](?= )")

# ---- the script


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What happens to one page: seconds, tokens, and the refusals its first attempts meet."""

    number: int
    ocr_ms: int
    llm_ms: int
    model: str
    input_tokens: int
    output_tokens: int
    refusals: tuple[str, ...] = ()


def _scene(number: int) -> Scene:
    return _script()[1][number]


def _price(scene: Scene) -> Decimal:
    """Tokens times the list price, which is in dollars per million."""
    price = _script()[0][scene.model]
    return (scene.input_tokens * price["input"] + scene.output_tokens * price["output"]) / Decimal(1_000_000)


@cache
def _script() -> tuple[dict[str, dict[str, Decimal]], dict[int, Scene]]:
    script = json.loads((Path(__file__).parent / "script.json").read_text(encoding="utf-8"))
    prices = {
        model: {kind: Decimal(usd) for kind, usd in price.items()}
        for model, price in script["usd_per_million_tokens"].items()
    }
    scenes = [Scene(**{**page, "refusals": tuple(page.get("refusals", ()))}) for page in script["pages"]]
    return prices, {scene.number: scene for scene in scenes}


def _paced(milliseconds: int) -> float:
    return milliseconds / 1000 * float(os.environ.get("HOLDFAST_DEMO_PACE", "1"))


async def _refuse(refusal: str) -> None:
    milliseconds, error = _REFUSALS[refusal]
    await asyncio.sleep(_paced(milliseconds))
    raise error()


_REFUSALS: dict[str, tuple[int, Callable[[], Exception]]] = {
    "429": (3, lambda: ServiceError(429, "too many requests")),
    "503": (8, lambda: ServiceError(503, "model is overloaded")),
    "timeout": (60, lambda: TimeoutError("no reply from the model")),
}

# ---- the provider's account


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What the provider charged: for `calls` calls, `repeated` of them for a page it had been paid for before."""

    calls: int
    usd: Decimal
    repeated: int
    repeated_usd: Decimal


def read_bill(ledger: str | os.PathLike[str]) -> Bill:
    """Add up a ledger. A page billed again was in flight when its caller died."""
    lines = [json.loads(line) for line in Path(ledger).read_text(encoding="utf-8").splitlines()]
    seen: Counter[str] = Counter()
    usd = repeated_usd = Decimal(0)
    for line in lines:
        cost = Decimal(line["usd"])
        usd += cost
        repeated_usd += cost if seen[line["key"]] else 0
        seen[line["key"]] += 1
    return Bill(calls=len(lines), usd=usd, repeated=len(lines) - len(seen), repeated_usd=repeated_usd)


def _bill(idempotency_key: str, scene: Scene, cost: Decimal) -> None:
    """One line, one write, appended: whole or absent, whichever process is killed when."""
    ledger = os.environ.get("HOLDFAST_DEMO_LEDGER")
    if not ledger:
        return
    line = json.dumps({"key": idempotency_key, "page": scene.number, "model": scene.model, "usd": str(cost)})
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
