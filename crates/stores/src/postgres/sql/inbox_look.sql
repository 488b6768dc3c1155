-- What the ledger has of a message that somebody else wrote while we were about to.
SELECT hash, state FROM semel_inbox WHERE grp = $1 AND source = $2 AND id = $3
