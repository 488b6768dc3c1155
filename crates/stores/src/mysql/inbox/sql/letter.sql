-- Whether a letter is there, and its id if it has one; held.
SELECT id FROM semel_inbox_letter WHERE number = ? AND grp = ? FOR UPDATE
