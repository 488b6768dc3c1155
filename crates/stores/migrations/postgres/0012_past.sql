-- How a store finds out that it lost records which were committed: a standby that was promoted before the last of them
-- came, a snapshot of the disk. The sequence of tokens does not tell, because the server logs it 32 numbers ahead. So each
-- process looks whether the newest record it knows of is there, whenever it connects.
--
-- A record that is not there was deleted, or was given up by an operator; else it was lost. Triggers write down how far
-- either has come, also for builds that know nothing of it.

-- No record with a token up to this one is missed. Changes with the rows it speaks of, in their transaction.
ALTER TABLE semel_meta ADD COLUMN past_token bigint NOT NULL DEFAULT 0;

-- Whether a record that was committed is not there, although nothing so new was deleted and no operator gave it up. By the
-- index, also on a table that the planner thinks empty. A standby, to which a pooler may lead an open connection, can just
-- be late; it takes no writes, so nothing is granted there.
CREATE FUNCTION semel_is_lost(operation bytea, at_least bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN current_setting('transaction_read_only') = 'off'
        AND coalesce(at_least > meta.past_token, false)
        AND NOT EXISTS (SELECT FROM semel_operation AS o WHERE o.id = operation AND o.token >= at_least)
        FROM semel_meta AS meta;
END
$$;

-- As the owner, because whoever deletes need not be allowed more; in the schema of the table, whatever the caller's
-- search path is. Nobody else may make a trigger of it: on a table of their own it would write where they say.
--
-- Each claim reads that row, and old versions of it stay while somebody holds an old snapshot open. So what is noted is
-- ahead of what was deleted by a sixteenth of what was given since, and most of the time there is nothing to write.
CREATE FUNCTION semel_note_deleted() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest bigint := (SELECT max(deleted.token) FROM deleted);
BEGIN
    IF newest IS NOT NULL THEN
        EXECUTE format(
            'UPDATE %1$I.semel_meta SET past_token = $1 + greatest(0, ((SELECT last_value FROM %1$I.semel_token) - $1) / 16)
             WHERE past_token < $1',
            TG_TABLE_SCHEMA
        ) USING newest;
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION semel_note_deleted() FROM PUBLIC;

CREATE TRIGGER semel_operation_deleted AFTER DELETE ON semel_operation
REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION semel_note_deleted();

-- A new epoch gives up whatever was lost, and its tokens begin above that. The sequence was set by then: this fires at
-- the end of the statement.
CREATE FUNCTION semel_note_epoch() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format(
        'UPDATE %1$I.semel_meta SET past_token = greatest(past_token, (SELECT last_value FROM %1$I.semel_token))',
        TG_TABLE_SCHEMA
    );
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION semel_note_epoch() FROM PUBLIC;

CREATE TRIGGER semel_meta_epoch AFTER UPDATE OF epoch ON semel_meta
FOR EACH ROW WHEN (OLD.epoch <> NEW.epoch) EXECUTE FUNCTION semel_note_epoch();
