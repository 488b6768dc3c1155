-- A message that was just written down is not applied.
UPDATE semel_inbox SET state = 3 WHERE grp = ? AND source = ? AND id = ? AND batch = @semel_batch
