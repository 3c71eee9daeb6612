-- The expected number of items of a batch, and when it stopped taking new ones.

ALTER TABLE batches ADD COLUMN expected INTEGER;
ALTER TABLE batches ADD COLUMN closed_at REAL;
