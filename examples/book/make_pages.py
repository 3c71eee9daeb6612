"""Make `pages.jsonl` and `script.json` from the plain text of a book.

    python make_pages.py moby-dick.txt --first "CHAPTER 1. " --before "CHAPTER 87. "

The text is set in lines and cut into pages, each page is given the wear and misreadings of a scan, and each gets its
scene in the script: seconds, tokens, model, refusals. Everything is drawn from the page number, so the same text makes
the same files, byte for byte. Nothing is written unless correcting the scans gives the book back, word for word, and
all pages together cost exactly what they should.
"""

import argparse
import hashlib
import json
import re
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import service

Row = dict[str, Any]  # one page's line in the script

HERE = Path(__file__).parent
WIDTH = 64  # characters in a printed line
PRICES = {"quill-small": {"input": "4", "output": "8"}, "quill-large": {"input": "24", "output": "48"}}
HARD_PAGES = 0.12  # foxed, faint or badly inked: more misreadings, and the large model
WORN_WORDS = {"quill-small": 0.012, "quill-large": 0.06}
REFUSED_PAGES = 0.04
REFUSALS = (["429"], ["503"], ["429", "429"], ["timeout"], ["429"], ["503", "429"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the book as plain text, blank lines between paragraphs")
    parser.add_argument("--first", default="", help="begin where this first stands in the text")
    parser.add_argument("--before", default="", help="end before this")
    parser.add_argument("--title", default="MOBY-DICK; OR, THE WHALE.", help="the running head")
    parser.add_argument("--pages", type=int, default=447)
    parser.add_argument("--usd", type=Decimal, default=Decimal("5.00"), help="what correcting all pages costs")
    options = parser.parse_args()

    book = passage(options.text.read_text(encoding="utf-8"), options.first, options.before)
    pages = cut(set_in_lines(book), options.pages)
    texts = [service.join_lines(lines) for lines in pages]
    scenes = make_script(texts, options.usd)
    scans = [scan(lines, scene, options.title) for lines, scene in zip(pages, scenes, strict=True)]
    check(book, texts, scans)
    write(scans, scenes)


def passage(text: str, first: str, before: str) -> str:
    """From `first` up to `before`; transcriptions without the pound sign write a capital L for it."""
    start = text.index(first)
    chosen = text[start : text.index(before, start) if before else None]
    return re.sub(r"\bL(?=\d)", "£", chosen)


# ---- setting the text


def set_in_lines(book: str) -> list[str]:
    """The whole book as printed lines, an empty one between paragraphs."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", book.strip("\n")):
        printed = paragraph.split("\n")
        if any(line.startswith(" ") for line in printed):
            lines += ["     " + line.strip() for line in printed]
        else:
            lines += fill(paragraph.split())
        lines.append("")
    return lines[:-1]


def fill(words: list[str]) -> list[str]:
    """One paragraph in lines of at most WIDTH, long words broken where a line would end short."""
    lines, line = [], words[0]
    for word in words[1:]:
        room = WIDTH - len(line) - 1
        if len(word) <= room:
            line += " " + word
            continue
        head, tail = break_word(word, room)
        lines.append(f"{line} {head}-" if head else line)
        line = tail
    return [*lines, line]


def break_word(word: str, room: int) -> tuple[str, str]:
    """Break a plain long word before a lone consonant, three letters or more on either side."""
    plain = re.match(r"[a-z]{8,}", word)
    for at in range(min(room - 1, plain.end() - 3 if plain else 0), 2, -1):
        if re.fullmatch(r"[aeiou][^aeiou][aeiou]", word[at - 1 : at + 2]):
            return word[:at], word[at:]
    return "", word


def cut(lines: list[str], pages: int) -> list[list[str]]:
    """Pages of even length; the last word of a page is not broken."""
    cuts = [lines[len(lines) * n // pages : len(lines) * (n + 1) // pages] for n in range(pages)]
    for page, following in pairwise(cuts):
        if re.search(r"[A-Za-z]-$", page[-1]):
            rest, _, following[0] = following[0].partition(" ")
            page[-1] = page[-1][:-1] + rest
    return [strip_empty(page) for page in cuts]


def strip_empty(page: list[str]) -> list[str]:
    while page and not page[0]:
        page = page[1:]
    while page and not page[-1]:
        page = page[:-1]
    return page


# ---- wear


def scan(lines: list[str], scene: Row, title: str) -> str:
    """A page as the scanner sees it: running head, printed lines, some words worn."""
    number, rate = scene["number"], WORN_WORDS[scene["model"]]
    return "\n".join(
        [
            f"{number}    {title}",
            *(wear(line, rate, place=f"{number}.{position}") for position, line in enumerate(lines)),
        ]
    )


def wear(line: str, rate: float, place: str) -> str:
    """A line with the words that the dice pick misread, each in one way only, so that it can be put right."""
    if line.endswith("-") or line.startswith(" "):
        return line
    worn: list[str] = []
    words = line.split(" ")
    for position, word in enumerate(words):
        here = f"{place}.{position}"
        if draw(here, "speck") < rate / 8 and 0 < position < len(words) - 1:
            worn.append(service.SPECKS[int(draw(here, "which speck") * len(service.SPECKS))])
        worn.append(misread(word, here) if draw(here, "worn") < rate * 3 else word)
    return unspaced(" ".join(worn)) if draw(place, "spacing") < rate else " ".join(worn)


def misread(word: str, place: str) -> str:
    """The word as worn type shows it; most words have one weak spot, some have none."""
    ways = [
        re.sub(r"(?<=[A-Za-z])l+", lambda run: "1" * len(run.group()), word, count=1),
        re.sub(r"(?<=[a-z])o", "0", word, count=1),
        word.replace("fi", "ﬁ", 1).replace("fl", "ﬂ", 1),
        re.sub(r"(?<=[a-z])s(?=[a-z])", service.LONG_S, word, count=1),
    ]
    ways += [worn] * 4 if (worn := _LOOKALIKES.get(word.lower())) and word.isalpha() else []
    ways = [way if word[0].islower() else way[0].upper() + way[1:] for way in ways if way != word]
    chosen = ways[int(draw(place, "way") * len(ways))] if ways else word
    return chosen if service.mend(chosen)[0] == word else word


def unspaced(line: str) -> str:
    """Two words run together, where the result cannot be taken for another."""
    for joined, apart in _RUN_TOGETHER:
        if f" {apart} " in line:
            return line.replace(f" {apart} ", f" {joined} ", 1)
    return line


_LOOKALIKES = {right: wrong for wrong, right in service.MISREADINGS.items() if " " not in right}
_RUN_TOGETHER = [(wrong, right) for wrong, right in service.MISREADINGS.items() if " " in right]


# ---- the script


def make_script(texts: list[str], usd: Decimal) -> list[Row]:
    """One scene a page; the instructions in each call are given the length at which the whole book costs `usd`."""
    scenes = [make_scene(number, text) for number, text in enumerate(texts, start=1)]
    missing = int(usd * 1_000_000) - sum(map(micro_usd, scenes))
    every = missing // sum(int(PRICES[scene["model"]]["input"]) for scene in scenes)
    for scene in scenes:
        scene["input_tokens"] += every
    small = [scene for scene in scenes if scene["model"] == "quill-small"]
    tokens, rest = divmod(int(usd * 1_000_000) - sum(map(micro_usd, scenes)), int(PRICES["quill-small"]["input"]))
    for at in range(tokens):
        small[at % len(small)]["input_tokens"] += 1
    if every < 0 or rest or sum(map(micro_usd, scenes)) != usd * 1_000_000:
        raise SystemExit(f"at these prices the book cannot cost exactly {usd}: change PRICES")
    return scenes


def make_scene(number: int, text: str) -> Row:
    tokens = len(text) // 4
    scene: Row = {
        "number": number,
        "ocr_ms": 2 + int(draw(number, "ocr") * 5),
        "llm_ms": 20 + int(draw(number, "llm") * 21),
        "model": "quill-large" if draw(number, "hard") < HARD_PAGES else "quill-small",
        "input_tokens": tokens,
        "output_tokens": tokens,
    }
    if draw(number, "refused") < REFUSED_PAGES:
        scene["refusals"] = REFUSALS[int(draw(number, "refusal") * len(REFUSALS))]
    return scene


def micro_usd(scene: Row) -> int:
    price = PRICES[scene["model"]]
    usd: int = scene["input_tokens"] * int(price["input"]) + scene["output_tokens"] * int(price["output"])
    return usd


def draw(*what: object) -> float:
    """A number from 0 up to 1 that depends on nothing but the words given."""
    digest = hashlib.sha256(" ".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


# ---- checking and writing


def check(book: str, texts: list[str], scans: list[str]) -> None:
    for number, (text, image) in enumerate(zip(texts, scans, strict=True), start=1):
        read = service.join_lines(image.split("\n")[1:])
        if service.mend(read)[0] != text:
            raise SystemExit(f"page {number} does not come back as it was printed")
    if " ".join(texts).split() != book.split():
        raise SystemExit("the pages together are not the book")


def write(scans: list[str], scenes: list[Row]) -> None:
    with (HERE / "pages.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for number, image in enumerate(scans, start=1):
            file.write(json.dumps({"number": number, "image": image}, ensure_ascii=False) + "\n")
    rows = ",\n".join(f"    {json.dumps(scene)}" for scene in scenes)
    prices = json.dumps(PRICES)
    script = f'{{\n  "usd_per_million_tokens": {prices},\n  "pages": [\n{rows}\n  ]\n}}\n'
    (HERE / "script.json").write_text(script, encoding="utf-8")


if __name__ == "__main__":
    main()
