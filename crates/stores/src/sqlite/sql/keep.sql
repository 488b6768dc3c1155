-- The same attempt in the same state: a renewal, a note, evidence. Touches no index.
UPDATE semel_operation SET lease_until = ?2, print_paths = ?3, history = ?4 WHERE token = ?1;
