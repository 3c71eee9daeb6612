-- How long an item was deferred at its stage.

ALTER TABLE places ADD COLUMN deferred REAL NOT NULL DEFAULT 0;
