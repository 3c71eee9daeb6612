-- How many items a batch is expected to have, and since when it takes no new ones.

ALTER TABLE batches ADD COLUMN expected INTEGER;
ALTER TABLE batches ADD COLUMN closed_at REAL;
