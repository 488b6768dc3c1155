-- Gone once this is answered, also after a crash.
DELETE FROM semel_subject_key WHERE subject = $1
AND CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
    ELSE 'durable' END IS NOT NULL
RETURNING id
