-- An operator accepted a restored state.
INSERT INTO semel_restore (
    epoch, acknowledged_at, acknowledged_by, found_epoch, found_token, seen_epoch, seen_token
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);
