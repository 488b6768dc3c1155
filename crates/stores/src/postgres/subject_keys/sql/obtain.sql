-- The key of a subject, or the one offered if there is none. No row: another made one at the same moment; ask again.
WITH there AS (
    SELECT id, master, sealed FROM semel_subject_key WHERE subject = $1
), made AS (
    INSERT INTO semel_subject_key (subject, id, master, sealed)
    SELECT $1, $2, $3, $4
    WHERE NOT EXISTS (SELECT FROM there)
    -- Nothing may be sealed with a key that a crash can undo. Local to the transaction.
    AND CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
        ELSE 'durable' END IS NOT NULL
    ON CONFLICT (subject) DO NOTHING
    RETURNING id, master, sealed
)
SELECT id, master, sealed FROM there UNION ALL SELECT id, master, sealed FROM made
