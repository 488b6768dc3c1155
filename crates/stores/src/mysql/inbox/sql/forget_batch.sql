DELETE FROM semel_inbox_batch WHERE batch = ?
