-- A letter is applied, and is gone. Whoever finds none comes after somebody who applied it.
DELETE FROM semel_inbox_letter WHERE number = ? AND grp = ?;
SELECT ROW_COUNT()
