"""Makes `documents.jsonl`: letters and memos of an invented case, always the same, some of them twice."""

import json
import random
from pathlib import Path

PEOPLE = ("A. Marsh", "B. Okafor", "C. Lindqvist", "D. Reyes", "E. Novak")
THINGS = ("the harbour lease", "the survey of the north wall", "the insurance of the crane", "the delayed shipment",
          "the second invoice", "the meeting with the contractor")  # fmt: skip
TURNS = ("needs your signature before", "was discussed at length on", "must not be paid before", "was settled on",
         "is privileged and confidential since", "was inspected on")  # fmt: skip
COUNT = 48
COPIES = {17: 3, 29: 11, 36: 3, 44: 40}
"""Number of a document -> the one that it is a copy of."""


def letter(chance: random.Random) -> str:
    lines = []
    for _ in range(chance.randint(3, 9)):
        day = f"{chance.randint(2021, 2024)}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"
        lines.append(f"{chance.choice(THINGS).capitalize()} {chance.choice(TURNS)} {day}.")
    if chance.random() < 0.3:
        number = f"{chance.randint(100, 999)}-{chance.randint(10, 99)}-{chance.randint(1000, 9999)}"
        lines.append(f"My number for the files is {number}.")
    return "\n".join(lines)


def documents() -> list[dict[str, object]]:
    chance = random.Random(1851)
    made: list[dict[str, object]] = []
    for number in range(1, COUNT + 1):
        body, extra = letter(chance), [letter(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
        made.append({
            "id": f"DOC-{number:03d}", "custodian": chance.choice(PEOPLE), "body": body,
            "attachments": [{"name": f"exhibit-{n}.txt", "text": text} for n, text in enumerate(extra, start=1)],
        })  # fmt: skip
    for number, original in COPIES.items():
        made[number - 1] |= {name: made[original - 1][name] for name in ("body", "attachments")}
    return made


if __name__ == "__main__":
    target = Path(__file__).with_name("documents.jsonl")
    target.write_text("".join(json.dumps(each) + "\n" for each in documents()), encoding="utf-8")
