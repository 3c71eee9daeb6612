-- How far a partition of a source has been read. The id is that of the table of items.

CREATE TABLE checkpoints (
    id       INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL,
    cursor   BLOB NOT NULL,
    acc      BLOB,
    at       REAL NOT NULL
) STRICT;
