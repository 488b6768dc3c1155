-- Never applies a letter. Its ledger row stays: another delivery is a duplicate.
DELETE FROM semel_inbox_letter WHERE number = ? AND grp = ?
