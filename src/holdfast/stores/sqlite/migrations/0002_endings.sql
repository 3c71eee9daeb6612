-- How a batch ends: its course and its end; how often an item was requeued, and how long it was
-- deferred at its stage; and the outbox.

ALTER TABLE batches ADD COLUMN course TEXT NOT NULL DEFAULT 'open';
ALTER TABLE batches ADD COLUMN ends_at REAL;
ALTER TABLE places ADD COLUMN requeues INTEGER NOT NULL DEFAULT 0;
ALTER TABLE places ADD COLUMN deferred REAL NOT NULL DEFAULT 0;

-- Written with the change it describes, delivered later, to each receiver from its position.
CREATE TABLE events (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    at    REAL NOT NULL,
    kind  TEXT NOT NULL,
    body  BLOB NOT NULL,
    n     INTEGER
) STRICT;

CREATE TABLE receivers (
    name  TEXT PRIMARY KEY,
    up_to INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
