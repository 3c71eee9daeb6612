"""Where items and rows come from: files, folders, buckets, APIs. All are read as streams, from any row on."""

from holdfast.runtime.sources.base import Identified, Malformed, Page, Readable, Source, Span
from holdfast.runtime.sources.csv import Csv
from holdfast.runtime.sources.folder import File, Folder
from holdfast.runtime.sources.jsonlines import JsonLines
from holdfast.runtime.sources.objects import Object, Objects
from holdfast.runtime.sources.parquet import Parquet
from holdfast.runtime.sources.reader import Reader
from holdfast.runtime.sources.sql.query import Query
from holdfast.runtime.sources.sql.table import Table
from holdfast.runtime.sources.web_pages import Pages

__all__ = [
    "Csv", "File", "Folder", "Identified", "JsonLines", "Malformed", "Object", "Objects", "Page", "Pages", "Parquet",
    "Query", "Readable", "Reader", "Source", "Span", "Table",
]  # fmt: skip
