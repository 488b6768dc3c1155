-- A group, with counts over no more than a bounded number of its ledger rows.
SELECT COUNT(*), COALESCE(SUM(state = 1), 0)
FROM (SELECT state FROM semel_inbox WHERE grp = ? LIMIT ?) AS looked;
SELECT COALESCE(SUM(aside = 1), 0), COALESCE(SUM(aside IN (2, 4)), 0), COALESCE(SUM(aside = 3), 0), MIN(since)
FROM semel_inbox_letter WHERE grp = ?
