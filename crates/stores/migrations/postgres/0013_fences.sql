-- Tokens of fences after a restore. The backup's sequence knows nothing of those that were given since, and would give them
-- again: two attempts with one token pass each other's fence. So an epoch begins 2^40 above the one before it, and above the
-- microseconds since 1970: a backup that is restored twice begins the same epoch twice, and not where it did the first time.
CREATE OR REPLACE FUNCTION semel_note_epoch() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fences text := format('%I.semel_fence_token', TG_TABLE_SCHEMA);
    beginning bigint := greatest((NEW.epoch - 1) << 40, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    given bigint;
BEGIN
    EXECUTE format(
        'UPDATE %1$I.semel_meta SET past_token = greatest(past_token, (SELECT last_value FROM %1$I.semel_token))',
        TG_TABLE_SCHEMA
    );
    EXECUTE 'SELECT last_value FROM ' || fences INTO given;
    -- A sequence does not roll back, and forward is the harmless direction.
    IF given < beginning THEN
        PERFORM setval(fences::regclass, beginning);
    END IF;
    RETURN NULL;
END
$$;

-- Also for restores that were acknowledged before this was here.
SELECT setval('semel_fence_token', (meta.epoch - 1) << 40)
FROM semel_meta AS meta, semel_fence_token AS fences
WHERE fences.last_value < (meta.epoch - 1) << 40;

-- A token that a crash of the server can take back would be given twice, and so would a fence that was passed be open again.
CREATE OR REPLACE FUNCTION semel_lease(resource text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF resource IS NULL OR octet_length(resource) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a resource has a name of 1 to 512 bytes' USING ERRCODE = 'SM004';
    END IF;
    PERFORM semel_durable();
    RETURN nextval('semel_fence_token');
END
$$;

CREATE OR REPLACE FUNCTION semel_fence_look(resource text, token bigint, OUT last bigint, OUT newest bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    PERFORM semel_durable();
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO newest FROM semel_fence_token AS s;
    IF token > newest THEN
        RETURN;
    END IF;
    LOOP
        SELECT f.last_token INTO last FROM semel_fence AS f WHERE f.resource = resource FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO semel_fence (resource, last_token, passed_at) VALUES (resource, token, semel_now())
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    IF token > last THEN
        UPDATE semel_fence AS f SET last_token = token, passed_at = semel_now() WHERE f.resource = resource;
    END IF;
END
$$;
