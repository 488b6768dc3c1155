UPDATE semel_inbox_batch SET took = ?2 WHERE batch = ?1
