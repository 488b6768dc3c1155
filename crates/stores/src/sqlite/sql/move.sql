-- The same attempt in another state. Touches no index but the small one of open records.
UPDATE semel_operation SET
    state = ?2, settled_at = ?3, lease_until = ?4, print_paths = ?5, history = ?6, outcome = ?7
WHERE token = ?1;
