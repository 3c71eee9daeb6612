-- How the items of a chunk are worked on: see Kind. Before this version, a batch whose only stage has a source was a
-- scan, and its buried rows were distinguished from its partitions by their keys.

ALTER TABLE chunks ADD COLUMN kind TEXT NOT NULL DEFAULT 'items';

UPDATE chunks SET kind = coalesce((SELECT iif(substr(key, 1, 4) = 'row ', 'rows', 'partitions') FROM items
                                   WHERE items.id = (chunks.batch << 34) + chunks.lo), 'partitions')
WHERE batch IN (
    SELECT id FROM batches
    WHERE stages = 1 AND CASE WHEN json_valid(CAST(definition AS TEXT))
                              THEN json_type(CAST(definition AS TEXT), '$.stages[0].source') IS NOT NULL END
);
