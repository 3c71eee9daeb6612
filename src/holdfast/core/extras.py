"""How to get a library that only some need: the one place that says it."""

from holdfast.core.errors import UsageError

EXTRAS = {"obstore": "buckets", "httpx": "http", "pyarrow": "parquet", "SQLAlchemy": "sql"}
"""The library, and the extra of Holdfast that brings it."""


def how_to_get(library: str) -> str:
    """What to type. Holdfast is installed from a clone, so its extras are, too."""
    return f'pip install ".[{EXTRAS[library]}]" in the clone of Holdfast brings it'


def missing(what: str, library: str) -> UsageError:
    """The refusal of something whose library is not there."""
    return UsageError(f"{what} {library}, which is not installed here: {how_to_get(library)}")
