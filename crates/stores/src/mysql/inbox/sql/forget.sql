-- A ledger row that is old and held.
DELETE FROM semel_inbox WHERE grp = ? AND source = ? AND id = ?
