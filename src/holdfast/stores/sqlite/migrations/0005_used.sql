-- The used part of an item's time budget, and the planned length of its wait. The column `since` is no longer read: by
-- wall-clock time, a suspended machine would use up the budget.

ALTER TABLE places ADD COLUMN used REAL NOT NULL DEFAULT 0;
ALTER TABLE places ADD COLUMN wait REAL NOT NULL DEFAULT 0;
