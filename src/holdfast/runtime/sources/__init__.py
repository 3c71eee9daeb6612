"""Where items come from: files of rows, files of JSON, folders of files. All are read as streams."""

from holdfast.runtime.sources.base import Malformed, Source
from holdfast.runtime.sources.csv import Csv
from holdfast.runtime.sources.folder import File, Folder
from holdfast.runtime.sources.jsonlines import JsonLines
from holdfast.runtime.sources.sql.query import Query
from holdfast.runtime.sources.sql.table import Table

__all__ = ["Csv", "File", "Folder", "JsonLines", "Malformed", "Query", "Source", "Table"]
