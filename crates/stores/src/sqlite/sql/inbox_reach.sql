-- How far relays have come with a key.
SELECT epoch, sequence, since, prior FROM semel_inbox_fence WHERE grp = ?1 AND source = ?2 AND lane = ?3 AND key = ?4
