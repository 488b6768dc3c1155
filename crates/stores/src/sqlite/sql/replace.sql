-- A new attempt, or a change of what indexes hold: the whole row, at its new place.
UPDATE semel_operation SET
    token = ?1, id = ?2, state = ?3, attempts = ?4, recovery = ?5, lease = ?6, run_max = ?7,
    ttl = ?8, retry_window = ?9, created_at = ?10, attempt_at = ?11, lease_until = ?12,
    settled_at = ?13, nonce = ?14, namespace = ?15, tenant = ?16, route = ?17, key = ?18,
    subject = ?19, print_version = ?20, print_digest = ?21, print_paths = ?22, history = ?23,
    outcome = ?24, sweep_at = coalesce(?25, sweep_at), generation = coalesce(?26, generation)
WHERE token = ?27;
