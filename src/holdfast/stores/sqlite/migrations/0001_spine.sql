-- The base tables: batches, chunks, items, outputs, places and the journal.
-- An item's id is batch << 34 | number; an output's id is that << 6 | stage. So a chunk is one range of either table.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE batches (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    pipeline    TEXT NOT NULL,
    definition  BLOB NOT NULL,
    stages      INTEGER NOT NULL,
    opened_at   REAL NOT NULL,
    admitted    INTEGER NOT NULL DEFAULT 0,
    ingested_at REAL,
    sealed_at   REAL,
    seq         INTEGER NOT NULL DEFAULT 0,
    head        BLOB NOT NULL
) STRICT;

CREATE TABLE chunks (
    id         INTEGER PRIMARY KEY,
    batch      INTEGER NOT NULL REFERENCES batches (id),
    lo         INTEGER NOT NULL,
    hi         INTEGER NOT NULL,
    parent     INTEGER,
    fence      INTEGER NOT NULL DEFAULT 0,
    version    INTEGER NOT NULL DEFAULT 0,
    owner      TEXT,
    expires    REAL NOT NULL DEFAULT 0,
    due        REAL NOT NULL DEFAULT 0,
    blame      INTEGER NOT NULL DEFAULT 0,
    progressed INTEGER NOT NULL DEFAULT 1,
    reserved   INTEGER NOT NULL DEFAULT 0,
    done       INTEGER NOT NULL DEFAULT 0,
    skipped    INTEGER NOT NULL DEFAULT 0,
    dead       INTEGER NOT NULL DEFAULT 0,
    cancelled  INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    spent      INTEGER NOT NULL DEFAULT 0,
    tokens     INTEGER NOT NULL DEFAULT 0,
    seconds    REAL NOT NULL DEFAULT 0,
    seq        INTEGER NOT NULL DEFAULT 0,
    head       BLOB NOT NULL,
    touched_at REAL NOT NULL DEFAULT 0,
    CHECK (lo < hi),
    CHECK (done + skipped + dead + cancelled BETWEEN 0 AND hi - lo)
) STRICT;

CREATE INDEX chunks_open ON chunks (batch, due, lo) WHERE hi - lo > done + skipped + dead + cancelled;
CREATE INDEX chunks_range ON chunks (batch, lo);

CREATE TABLE items (
    id      INTEGER PRIMARY KEY,
    key     ANY NOT NULL,
    salt    BLOB,
    payload BLOB
) STRICT;

CREATE TABLE keys (
    batch  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;

-- A row only for items that left the plain way: failed, waited, were skipped, buried or went back. The place of the
-- others follows from their last output.
CREATE TABLE places (
    id      INTEGER PRIMARY KEY,
    stage   INTEGER NOT NULL,
    state   TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    due     REAL NOT NULL,
    since   REAL NOT NULL,
    spent   INTEGER NOT NULL,
    rewinds INTEGER NOT NULL,
    code    TEXT NOT NULL,
    reason  TEXT NOT NULL
) STRICT;

CREATE INDEX places_settled ON places (state, id) WHERE state <> 'pending' AND state <> 'done';

CREATE TABLE outputs (
    id    INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    data  BLOB,
    file  BLOB
) STRICT;

CREATE TABLE journal (
    chain INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    head  BLOB NOT NULL,
    body  BLOB NOT NULL,
    hash  BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX journal_chain ON journal (chain, seq);

CREATE TRIGGER journal_is_append_only_update BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

CREATE TRIGGER journal_is_append_only_delete BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
