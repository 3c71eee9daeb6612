-- name: batch_by_name
SELECT id, uid, name, pipeline, definition, opened_at, admitted, ingested_at, course, ends_at, sealed_at, expected, closed_at, seq, head FROM batches WHERE name = ?;

-- name: batch_by_id
SELECT id, uid, name, pipeline, definition, opened_at, admitted, ingested_at, course, ends_at, sealed_at, expected, closed_at, seq, head FROM batches WHERE id = ?;

-- name: all_batches
SELECT id, uid, name, pipeline, definition, opened_at, admitted, ingested_at, course, ends_at, sealed_at, expected, closed_at, seq, head FROM batches ORDER BY id;

-- name: same_batch
SELECT id FROM batches WHERE uid = ? OR name = ?;

-- name: strays
SELECT DISTINCT batch FROM chunks WHERE batch NOT IN (SELECT id FROM batches)
UNION SELECT DISTINCT -chain FROM journal WHERE chain < 0 AND -chain NOT IN (SELECT id FROM batches) ORDER BY 1;

-- name: loose_entries
SELECT j.chain, coalesce(c.batch, b.id, 0) FROM (SELECT chain, max(seq) AS seq FROM journal GROUP BY chain) AS j
LEFT JOIN chunks AS c ON c.id = j.chain LEFT JOIN batches AS b ON b.id = -j.chain
WHERE j.seq IS NOT coalesce(c.seq, b.seq);

-- name: miscounted_keys
SELECT b.id FROM batches AS b WHERE b.admitted <> (SELECT count(*) FROM keys AS k WHERE k.batch = b.id);

-- name: loose_texts
SELECT count(*) FROM texts AS t WHERE NOT EXISTS (SELECT 1 FROM journal AS j WHERE j.chain = t.chain AND j.seq = t.seq);

-- name: insert_batch
INSERT INTO batches (uid, name, pipeline, definition, stages, opened_at, head) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- name: link_batch
UPDATE batches SET seq = ?, head = ? WHERE id = ?;

-- name: grow_batch
UPDATE batches SET admitted = ?, ingested_at = coalesce(?, ingested_at) WHERE id = ?;

-- name: amend_batch
UPDATE batches SET definition = ?, stages = ?, course = ?, ends_at = ?, sealed_at = ?, expected = ?, closed_at = ?, ingested_at = ?
WHERE id = ?;

-- name: insert_events (bulk)
INSERT INTO events (batch, at, kind, body, n) VALUES

-- name: events_after
SELECT id, batch, at, kind, body, n FROM events WHERE id > ? ORDER BY id LIMIT ?;

-- name: advance_receiver
INSERT INTO receivers (name, up_to) VALUES (?, ?) ON CONFLICT DO UPDATE SET up_to = max(up_to, excluded.up_to) RETURNING up_to;

-- name: receiver_at
SELECT up_to FROM receivers WHERE name = ?;

-- name: insert_entries (bulk)
INSERT INTO journal (chain, seq, head, body, hash) VALUES

-- name: insert_texts (bulk)
INSERT INTO texts (chain, seq, at, n, boundary, frame) VALUES

-- name: entries_after
SELECT chain, seq, head, body, hash FROM journal WHERE chain = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: texts_between
SELECT seq, at, n, boundary, frame FROM texts WHERE chain = ? AND seq BETWEEN ? AND ? ORDER BY seq, at;

-- name: newest_heads
SELECT head FROM journal WHERE chain = ? ORDER BY seq DESC;

-- name: is_noted
SELECT 1 FROM noted WHERE batch = ? AND mark = ?;

-- name: note_once
INSERT OR IGNORE INTO noted (batch, mark) VALUES (?, ?);

-- name: heads_of_body
SELECT head FROM journal WHERE chain = ? AND length(body) = ? AND body = ?;

-- name: heads_with_id
WITH RECURSIVE line (id) AS (
    SELECT value FROM carray(?)
    UNION SELECT c.parent FROM chunks AS c JOIN line ON c.id = line.id WHERE c.parent IS NOT NULL
)
SELECT j.head FROM line JOIN journal AS j ON j.chain = line.id WHERE instr(j.head, ?);

-- name: insert_keys
INSERT INTO keys (batch, number, n) SELECT ?, value, ? + rowid FROM carray(?) ORDER BY value;

-- name: insert_items (bulk)
INSERT INTO items (id, key, payload, raw, parent) VALUES

-- name: known_keys
SELECT k.number, k.n, i.key, coalesce((SELECT payload FROM revisions AS r WHERE r.id = i.id ORDER BY revision DESC LIMIT 1), i.payload)
FROM keys AS k JOIN items AS i ON i.id = (k.batch << 34) + k.n WHERE k.batch = ? AND k.number IN (SELECT value FROM carray(?));

-- name: insert_chunk
INSERT INTO chunks (id, batch, number, lo, hi, parent, fence, grant_id, version, owner, expires, reserved, due, blame, progressed, done, skipped, dead, cancelled,
                    attempts, spent, tokens, seconds, seq, head, touched_at, kind, leg, first, "end", origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_numbers
SELECT coalesce((SELECT max(id) FROM chunks), 0) + 1, coalesce((SELECT max(number) FROM chunks WHERE batch = ?), 0) + 1;

-- name: end_chunk
UPDATE chunks SET hi = lo, owner = NULL, expires = 0, due = 0, blame = 0, progressed = 1, reserved = 0, done = 0, skipped = 0,
       dead = 0, cancelled = 0, attempts = 0, spent = 0, tokens = 0, seconds = 0, seq = ?, head = ?
WHERE id = ? AND seq = ? - 1;

-- name: windows_in_range
SELECT lo, first, "end" FROM chunks
WHERE batch = ? AND hi > lo AND lo <= ?
      AND lo >= coalesce((SELECT max(lo) FROM chunks WHERE batch = ? AND lo <= ? AND hi > lo), 0)
ORDER BY lo;

-- name: chunk_by_id
SELECT * FROM chunks WHERE id = ?;

-- name: chunks_of_batch
SELECT * FROM chunks WHERE batch = ? ORDER BY lo, hi, id LIMIT ?;

-- name: pending_chunks
SELECT * FROM chunks INDEXED BY chunks_open WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled LIMIT ?;

-- name: chunk_of_item
SELECT * FROM chunks WHERE batch = ? AND lo <= ? ORDER BY lo DESC, hi DESC LIMIT 1;

-- name: claimable_again
SELECT * FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND due > 0 AND due <= ? AND (owner IS NULL OR expires < ?)
ORDER BY due, lo LIMIT ?;

-- name: claimable_fresh
SELECT * FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND due = 0 AND (owner IS NULL OR expires < ?)
ORDER BY lo LIMIT ?;

-- name: claimable_early
SELECT * FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND due > ? AND due - ? > 2 * (due - touched_at)
      AND touched_at < due AND (owner IS NULL OR expires < ?)
ORDER BY lo LIMIT ?;

-- name: holders
SELECT owner, sum(expires >= ?) FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND owner IS NOT NULL AND due <= ?
GROUP BY owner;

-- name: left_by
SELECT * FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND owner = ? AND due <= ?
ORDER BY lo LIMIT ?;

-- name: held_chunks
SELECT * FROM chunks
WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled AND owner IS NOT NULL AND due <= ?
ORDER BY lo;

-- name: idle_facts
SELECT coalesce(sum(hi - lo - done - skipped - dead - cancelled), 0),
       min(CASE WHEN owner IS NULL THEN due ELSE max(due, expires) END)
FROM chunks INDEXED BY chunks_open WHERE batch = ? AND hi - lo > done + skipped + dead + cancelled;

-- name: money_spent
SELECT coalesce(sum(spent), 0) FROM chunks WHERE batch = ?;

-- name: dead_count
SELECT coalesce(sum(dead), 0) FROM chunks WHERE batch = ?;

-- name: grant_chunks (bulk)
WITH new (id, was, hi, fence, grant_id, owner, expires, due, blame, reserved, done, skipped, dead, cancelled, seq, head) AS (VALUES {rows})
UPDATE chunks SET hi = new.hi, fence = new.fence, grant_id = new.grant_id, version = 0, owner = new.owner, expires = new.expires, due = new.due,
       blame = new.blame, progressed = 0, reserved = new.reserved, done = new.done, skipped = new.skipped, dead = new.dead,
       cancelled = new.cancelled, seq = new.seq, head = new.head
FROM new WHERE chunks.id = new.id AND chunks.fence = new.was;

-- name: places_in_range
SELECT id, stage, epoch, attempt, code, used FROM places
WHERE id >= ? AND id < ? AND state = 'pending' AND (attempt > 0 OR epoch > 0) ORDER BY id;

-- name: states_in_range
SELECT coalesce(p.state, iif(o.id IS NULL, 'pending', 'done'))
FROM items AS i LEFT JOIN places AS p ON p.id = i.id LEFT JOIN outputs AS o ON o.id = i.id * 64 + ? - 1
WHERE i.id >= ? AND i.id < ? ORDER BY i.id;

-- name: anything_in_range
SELECT EXISTS (SELECT 1 FROM places WHERE id >= ? AND id < ?) OR EXISTS (SELECT 1 FROM outputs WHERE id >= ? AND id < ?);

-- name: load_plain
SELECT id, key, payload FROM items WHERE id >= ? AND id < ? ORDER BY id LIMIT ?;

-- name: load_any
SELECT i.id, i.key, CASE WHEN p.id IS NULL THEN i.payload ELSE coalesce(
           (SELECT payload FROM revisions AS r WHERE r.id = i.id ORDER BY revision DESC LIMIT 1), i.payload) END,
       CASE WHEN p.id IS NULL THEN 0 ELSE (SELECT coalesce(max(revision), 0) FROM revisions AS r WHERE r.id = i.id) END,
       o.id, o.data, o.file,
       p.id, p.stage, p.state, p.epoch, p.attempt, p.due, p.used, p.wait, p.spent, p.rewinds, p.requeues, p.deferred, p.code, p.reason
FROM items AS i
LEFT JOIN places AS p ON p.id = i.id
LEFT JOIN outputs AS o ON o.id = CASE
    WHEN p.id IS NULL THEN (SELECT max(id) FROM outputs WHERE id >= i.id * 64 AND id < i.id * 64 + 64)
    WHEN p.stage > ? THEN i.id * 64 + p.stage - 1 END
WHERE i.id >= ? AND i.id < ?
  AND (p.state = 'pending' OR p.id IS NULL AND coalesce((o.id & 63) + 1, 0) < ?)
ORDER BY i.id LIMIT ?;

-- name: records_any
SELECT i.id, i.key, i.payload, i.raw, 0, i.parent, (SELECT max(id) FROM outputs WHERE id >= i.id * 64 AND id < i.id * 64 + 64),
       p.id, p.stage, p.state, p.epoch, p.attempt, p.due, p.used, p.wait, p.spent, p.rewinds, p.requeues, p.deferred, p.code, p.reason
FROM items AS i LEFT JOIN places AS p ON p.id = i.id
WHERE i.id >= ? AND i.id < ? ORDER BY i.id LIMIT ?;

-- name: records_of
SELECT i.id, i.key, i.payload, i.raw, 0, i.parent, (SELECT max(id) FROM outputs WHERE id >= i.id * 64 AND id < i.id * 64 + 64),
       p.id, p.stage, p.state, p.epoch, p.attempt, p.due, p.used, p.wait, p.spent, p.rewinds, p.requeues, p.deferred, p.code, p.reason
FROM items AS i LEFT JOIN places AS p ON p.id = i.id
WHERE i.id IN (SELECT value FROM carray(?)) ORDER BY i.id;

-- name: records_settled
SELECT i.id, i.key, i.payload, i.raw, 0, i.parent, NULL,
       p.id, p.stage, p.state, p.epoch, p.attempt, p.due, p.used, p.wait, p.spent, p.rewinds, p.requeues, p.deferred, p.code, p.reason
FROM places AS p JOIN items AS i ON i.id = p.id
WHERE p.state = ? AND p.state <> 'pending' AND p.state <> 'done' AND p.id >= ? AND p.id < ? ORDER BY p.id LIMIT ?;

-- name: newest_revisions
SELECT id, max(revision), payload, raw FROM revisions WHERE id >= ? AND id <= ? GROUP BY id;

-- name: revisions_of
SELECT 0, payload, raw FROM items WHERE id = ?
UNION ALL SELECT revision, payload, raw FROM revisions WHERE id = ? ORDER BY 1;

-- name: newest_revision
SELECT coalesce(max(revision), 0) FROM revisions WHERE id = ?;

-- name: insert_revisions (bulk)
INSERT INTO revisions (id, revision, payload, raw) VALUES

-- name: outputs_in_range
SELECT id, epoch, data, file FROM outputs WHERE id >= ? AND id < ? ORDER BY id LIMIT ?;

-- name: outputs_of_stage
SELECT id, epoch, data, file FROM outputs WHERE id >= ? AND id < ? AND id & 63 = ? ORDER BY id LIMIT ?;

-- name: guard_chunks
SELECT c.id, c.fence, c.grant_id, c.version, c.owner, c.seq, c.head, c.number, c.lo, c.hi, b.uid, b.sealed_at
FROM chunks AS c JOIN batches AS b ON b.id = c.batch WHERE c.id IN (SELECT value FROM carray(?));

-- name: put_outputs (bulk)
INSERT OR REPLACE INTO outputs (id, epoch, data, file) VALUES

-- name: put_places (bulk)
INSERT OR REPLACE INTO places (id, stage, state, epoch, attempt, due, used, wait, spent, rewinds, requeues, deferred, code, reason) VALUES

-- name: put_checkpoints (bulk)
INSERT OR REPLACE INTO checkpoints (id, row_count, cursor, acc, at) VALUES

-- name: checkpoints_in_range
SELECT id, row_count, cursor, acc, at FROM checkpoints WHERE id >= ? AND id < ? ORDER BY id LIMIT ?;

-- name: advance_chunks (bulk)
WITH new (id, fence, grant_id, version, seq, head, at, expires, done, skipped, dead, cancelled, attempts, spent, tokens, seconds, reserved,
          released, due) AS (VALUES {rows})
UPDATE chunks SET version = chunks.version + 1, seq = new.seq, head = new.head, progressed = 1, blame = 0, touched_at = new.at,
       owner = iif(new.released, NULL, chunks.owner), due = iif(new.released, new.due, chunks.due),
       expires = iif(new.released, 0, max(chunks.expires, new.expires)), reserved = iif(new.released, 0, new.reserved),
       done = chunks.done + new.done, skipped = chunks.skipped + new.skipped, dead = chunks.dead + new.dead,
       cancelled = chunks.cancelled + new.cancelled, attempts = chunks.attempts + new.attempts, spent = chunks.spent + new.spent,
       tokens = chunks.tokens + new.tokens, seconds = chunks.seconds + new.seconds
FROM new WHERE chunks.id = new.id AND chunks.fence = new.fence AND chunks.grant_id = new.grant_id AND chunks.version = new.version;

-- name: start_chunks (bulk)
WITH new (id, fence, grant_id, version, seq, head, expires) AS (VALUES {rows})
UPDATE chunks SET version = chunks.version + 1, seq = new.seq, head = new.head, expires = max(chunks.expires, new.expires),
       blame = chunks.blame + 1
FROM new WHERE chunks.id = new.id AND chunks.fence = new.fence AND chunks.grant_id = new.grant_id AND chunks.version = new.version;

-- name: act_chunk
UPDATE chunks SET seq = ?, head = ?, touched_at = ?, due = 0,
       done = done + ?, skipped = skipped + ?, dead = dead + ?, cancelled = cancelled + ?
WHERE id = ?;

-- name: seize_chunk
UPDATE chunks SET fence = ?, version = 0, owner = NULL, expires = 0, due = 0, reserved = 0, progressed = 1 WHERE id = ?;

-- name: renew_lease
UPDATE chunks SET expires = ? WHERE id = ? AND fence = ? AND owner = ? AND grant_id = ? RETURNING id;

-- name: get_meta
SELECT value FROM meta WHERE name = ?;

-- name: put_meta
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);
