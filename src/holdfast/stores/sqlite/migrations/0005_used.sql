-- What an item has used of its time budget, and how long its wait was planned to be. The column `since` is not read any
-- more: by the clock on the wall, a suspended machine would use up the budget.

ALTER TABLE places ADD COLUMN used REAL NOT NULL DEFAULT 0;
ALTER TABLE places ADD COLUMN wait REAL NOT NULL DEFAULT 0;
