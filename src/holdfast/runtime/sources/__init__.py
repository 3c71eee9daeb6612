"""Sources of items and rows: files, folders, buckets, databases, APIs. All are read as streams, from any row on."""

from holdfast.runtime.sources.base import Identified, Malformed, Page, Readable, Source, Span
from holdfast.runtime.sources.listing import File, Folder, Object, Objects
from holdfast.runtime.sources.pages import Pages
from holdfast.runtime.sources.parquet import Parquet
from holdfast.runtime.sources.reader import Reader
from holdfast.runtime.sources.sql.source import Query, Table
from holdfast.runtime.sources.text_rows import Csv, JsonLines

__all__ = [
    "Csv", "File", "Folder", "Identified", "JsonLines", "Malformed", "Object", "Objects", "Page", "Pages", "Parquet",
    "Query", "Readable", "Reader", "Source", "Span", "Table",
]  # fmt: skip
