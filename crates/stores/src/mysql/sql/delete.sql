-- Records that have expired, locked before.
DELETE FROM semel_operation WHERE id IN (/*each ,*/?/*each*/)
