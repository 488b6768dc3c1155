-- How far the message has come that had an id before a letter was to get it.
SELECT i.state
FROM semel_inbox_letter AS l
JOIN semel_inbox AS i ON i.grp = l.grp AND i.source = l.source AND i.id = ?3
WHERE l.grp = ?1 AND l.number = ?2
