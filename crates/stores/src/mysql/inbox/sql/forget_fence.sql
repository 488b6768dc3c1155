DELETE FROM semel_inbox_fence WHERE grp = ? AND source = ? AND lane = ? AND `key` = ?
