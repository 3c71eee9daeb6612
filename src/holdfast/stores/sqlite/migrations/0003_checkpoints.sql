-- How far an item has been read that is a range of a source. An item's id is that of the table of items.

CREATE TABLE checkpoints (
    id       INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL,
    cursor   BLOB NOT NULL,
    acc      BLOB,
    at       REAL NOT NULL
) STRICT;
