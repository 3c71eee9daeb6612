"""The comparison of shown output finds a difference, and no difference where there is none."""

import pytest

from tests.docs import shown

REAL = "book: complete. All 1,000 items\n  this run 1,000 done in 0.1 s (16,254.6/s)\n\nhead  a0bbc0d0b0abb0ee\n"


@pytest.mark.parametrize(
    "page",
    [
        REAL,
        "book: complete. All 1,000 items\n this run 1,000 done in 350 ms (2/s)\nhead 00112233445566\n",
        "book: … All 1,000 items\n...\n",
        "...\nhead 00112233445566",
        "...\nthis run 1,000 done in 2e-05 s (3/s)\n...",
    ],
)
def test_what_means_the_same_is_the_same(page: str) -> None:
    shown.compare(REAL, page)


@pytest.mark.parametrize(
    "page",
    [
        "book: complete. All 7 items\n...",
        "book: complete. All 1,000 pages\n...",
        REAL + "and more",
        "book: …",
        "...\nthis run 1,000 dead in 2 s (3/s)\n...",
    ],
)
def test_a_difference_is_told(page: str) -> None:
    with pytest.raises(AssertionError, match="other output"):
        shown.compare(REAL, page)
