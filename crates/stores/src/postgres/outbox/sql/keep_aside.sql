-- What became of letters that stay aside, if the step before this statement was appended: by this
-- transaction, for after a lost answer the holder itself may have taken the same step in another.
UPDATE semel_outbox_aside AS letter
SET again_at = CASE WHEN put.state = 1 THEN coalesce($4,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + put.again_in END,
    tries = letter.tries + CASE WHEN put.state = 3 THEN 0 ELSE 1 END,
    state = put.state,
    reason = CASE WHEN put.state = 3 THEN letter.reason ELSE put.reason END
FROM unnest($5::bigint[], $6::smallint[], $7::bigint[], $8::text[]) AS put(sequence, state, again_in, reason)
WHERE letter.sequence = put.sequence AND letter.lane = $1
    AND EXISTS (SELECT FROM semel_outbox_cursor WHERE lane = $1 AND step = $2 AND epoch = $3
        AND xid = pg_current_xact_id())
RETURNING letter.sequence
