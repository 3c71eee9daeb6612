-- Record format 2: see core/journal, core/sections and core/commitments. `upgrade.py` completes it: random ids, the index
-- of keys, and an entry in the chain of every batch that says where the format begins.

ALTER TABLE batches ADD COLUMN uid BLOB NOT NULL DEFAULT x'';

-- A frame is a salt of 16 bytes and the content it protects. In format 1, everything of an item shared one salt.
UPDATE outputs SET data = CAST(items.salt || outputs.data AS BLOB), file = CAST(items.salt || outputs.file AS BLOB)
FROM items WHERE items.id = outputs.id >> 6;

UPDATE checkpoints SET acc = CAST(items.salt || checkpoints.acc AS BLOB) FROM items WHERE items.id = checkpoints.id;

CREATE TABLE new_items (
    id      INTEGER PRIMARY KEY,
    key     ANY NOT NULL,
    payload BLOB,
    raw     BLOB,
    parent  INTEGER
) STRICT;

INSERT INTO new_items (id, key, payload) SELECT id, key, CAST(salt || payload AS BLOB) FROM items ORDER BY id;
DROP TABLE items;
ALTER TABLE new_items RENAME TO items;

-- Payloads that came later: the newest one counts, the others stay. `raw`, as above, is the salt of the commitment to
-- the item as its source gave it, which is not stored; NULL if validation did not change it.
CREATE TABLE revisions (
    id       INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    payload  BLOB,
    raw      BLOB,
    PRIMARY KEY (id, revision)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER payloads_are_append_only BEFORE UPDATE ON items
BEGIN SELECT RAISE(ABORT, 'payloads are append-only'); END;

CREATE TRIGGER revisions_are_append_only BEFORE UPDATE ON revisions
BEGIN SELECT RAISE(ABORT, 'payloads are append-only'); END;

-- A chunk whose chain has ended has no items: its successor, whose parent it is, has them.
CREATE TABLE new_chunks (
    id         INTEGER PRIMARY KEY,
    batch      INTEGER NOT NULL REFERENCES batches (id),
    number     INTEGER NOT NULL,
    lo         INTEGER NOT NULL,
    hi         INTEGER NOT NULL,
    parent     INTEGER,
    fence      INTEGER NOT NULL DEFAULT 0,
    grant_id   BLOB NOT NULL DEFAULT x'',
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
    kind       TEXT NOT NULL DEFAULT 'items',
    leg        INTEGER NOT NULL DEFAULT 0,
    first      INTEGER NOT NULL DEFAULT 0,
    "end"      INTEGER NOT NULL,
    origin     INTEGER NOT NULL DEFAULT 0,
    CHECK (lo <= hi),
    CHECK (done + skipped + dead + cancelled BETWEEN 0 AND hi - lo)
) STRICT;

INSERT INTO new_chunks (id, batch, number, lo, hi, parent, fence, version, owner, expires, due, blame, progressed, reserved, done,
                        skipped, dead, cancelled, attempts, spent, tokens, seconds, seq, head, touched_at, kind, "end")
SELECT c.id, c.batch, row_number() OVER (PARTITION BY c.batch ORDER BY c.id), c.lo, c.hi, c.parent, c.fence, c.version, c.owner,
       c.expires, c.due, c.blame, c.progressed, c.reserved, c.done, c.skipped, c.dead, c.cancelled, c.attempts, c.spent, c.tokens,
       c.seconds, c.seq, c.head, c.touched_at, c.kind, coalesce((SELECT stages FROM batches WHERE batches.id = c.batch), 0)
FROM chunks AS c ORDER BY c.id;
DROP TABLE chunks;
ALTER TABLE new_chunks RENAME TO chunks;

CREATE INDEX chunks_open ON chunks (batch, due, lo) WHERE hi - lo > done + skipped + dead + cancelled;
CREATE INDEX chunks_range ON chunks (batch, lo);
CREATE UNIQUE INDEX chunks_number ON chunks (batch, number);

-- Words of items in entries, apart from the entries: `at` is their position among the words of the entry.
CREATE TABLE texts (
    chain    INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    boundary INTEGER NOT NULL,
    frame    BLOB,
    PRIMARY KEY (chain, seq, at)
) STRICT, WITHOUT ROWID;

-- Marks of notes that are written only once.
CREATE TABLE noted (
    batch INTEGER NOT NULL,
    mark  BLOB NOT NULL,
    PRIMARY KEY (batch, mark)
) STRICT, WITHOUT ROWID;

ALTER TABLE places DROP COLUMN since;
