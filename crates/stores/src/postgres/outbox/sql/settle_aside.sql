-- Letters that were sent, if the step before this statement was appended: by this
-- transaction, for after a lost answer the holder itself may have taken the same step in another.
DELETE FROM semel_outbox_aside
WHERE sequence = ANY ($4) AND lane = $1
    AND EXISTS (SELECT FROM semel_outbox_cursor WHERE lane = $1 AND step = $2 AND epoch = $3
        AND xid = pg_current_xact_id())
RETURNING sequence
