-- Operations in the application's own transaction, for every driver, and fences for resources.
--
-- The functions run as whoever calls them and find the tables by the search path, as everything here
-- does. Errors of class SM are about how they are used; they abort the transaction, so that nobody
-- commits half.

-- The tokens of fences. A counter of its own: they are never compared with tokens of operations. It does
-- not roll back, so no token is given twice.
CREATE SEQUENCE semel_fence_token AS bigint MINVALUE 1 CACHE 1 NO CYCLE;

-- The last token that wrote to a resource, in the transaction of that write.
CREATE TABLE semel_fence (
    last_token  bigint NOT NULL,
    passed_at   bigint NOT NULL,
    resource    text   NOT NULL CHECK (octet_length(resource) BETWEEN 1 AND 512),
    CONSTRAINT semel_fence_resource PRIMARY KEY (resource)
);

-- A new token for a resource, larger than all before. Take it in a transaction of its own, before the work.
CREATE FUNCTION semel_lease(resource text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF resource IS NULL OR octet_length(resource) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a resource has a name of 1 to 512 bytes' USING ERRCODE = 'SM004';
    END IF;
    RETURN nextval('semel_fence_token');
END
$$;

-- What was last, under the lock of the resource, and the largest token that was given. Remembers `token` unless
-- it is smaller than the last or was never given.
CREATE FUNCTION semel_fence_look(resource text, token bigint, OUT last bigint, OUT newest bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
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

-- Passes the fence in the transaction of the write, or fails it.
CREATE FUNCTION semel_pass(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seen record;
BEGIN
    SELECT * INTO seen FROM semel_fence_look(resource, token);
    IF token IS NULL OR token > seen.newest THEN
        RAISE EXCEPTION 'no lease gave the token %; the newest is %', token, seen.newest USING ERRCODE = 'SM007';
    ELSIF token < seen.last THEN
        RAISE EXCEPTION 'token % of % was overtaken by %', token, resource, seen.last
            USING ERRCODE = 'SM006', HINT = 'roll back; what it was about to write is out of date';
    END IF;
END
$$;

-- The server's time as everything here counts it.
CREATE FUNCTION semel_now() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A commit that a crash can undo must not be acted upon: whoever turned synchronous_commit off gets it on, for the
-- rest of this transaction. Whoever configured more than a local flush keeps it.
CREATE FUNCTION semel_durable() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The lock of an operation: 64 bits of its id in the space of two keys, where the lock of migrations is
-- not. The table's oid is mixed in, so that two stores in one database do not meet. With `waits`, waits
-- for it; else says at once whether it was free.
CREATE FUNCTION semel_lock(operation bytea, waits boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    high integer := ('x' || encode(substr(operation, 1, 4), 'hex'))::bit(32)::integer;
    low integer := ('x' || encode(substr(operation, 5, 4), 'hex'))::bit(32)::integer
        # hashoid('semel_operation'::regclass);
BEGIN
    IF waits THEN
        PERFORM pg_advisory_xact_lock(high, low);
        RETURN true;
    END IF;
    RETURN pg_try_advisory_xact_lock(high, low);
END
$$;

-- What this transaction has begun: operation -> attempt. A local setting, because it is undone by exactly
-- what undoes the lock: the end of the transaction, and a rollback to a savepoint before.
CREATE FUNCTION semel_joined() RETURNS jsonb
LANGUAGE sql STABLE AS $$ SELECT coalesce(nullif(current_setting('semel.joined', true), ''), '{}')::jsonb $$;

-- Takes the operation's lock, or says that somebody has it; then the record, the time and a new token.
-- Each statement of a volatile function has a snapshot of its own under READ COMMITTED, so the record is
-- what was committed before the lock was free. Under REPEATABLE READ and SERIALIZABLE it may be older;
-- semel_finish then fails with 40001, and the whole transaction is to be tried again.
CREATE FUNCTION semel_begin(operation bytea, attempt bytea)
RETURNS TABLE (
    held boolean, now_us bigint, fresh bigint, row_version bigint,
    id bytea, namespace text, tenant text, route text, key text, state smallint, token bigint, nonce bytea,
    fp_version integer, fp_digest bytea, fp_paths bytea, recovery smallint, lease_us bigint, run_max_us bigint,
    ttl_us bigint, window_us bigint, attempts integer, created_at bigint, attempt_at bigint,
    lease_until bigint, settled_at bigint, subject text, outcome bytea, history bytea
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    joined jsonb := semel_joined();
    name text := encode(operation, 'hex');
BEGIN
    -- The lock does not keep a transaction out of itself.
    IF joined ? name OR NOT semel_lock(operation, false) THEN
        RETURN QUERY SELECT
            false, semel_now(), NULL::bigint, NULL::bigint, none.id, none.namespace, none.tenant, none.route,
            none.key, none.state, none.token, none.nonce, none.fp_version, none.fp_digest, none.fp_paths,
            none.recovery, none.lease_us, none.run_max_us, none.ttl_us, none.window_us, none.attempts,
            none.created_at, none.attempt_at, none.lease_until, none.settled_at, none.subject, none.outcome,
            none.history
        FROM (SELECT 1) AS always LEFT JOIN semel_operation AS none ON false;
        RETURN;
    END IF;
    PERFORM semel_durable();
    PERFORM set_config('semel.joined', (joined || jsonb_build_object(name, encode(attempt, 'hex')))::text, true);
    RETURN QUERY SELECT
        true, semel_now(), nextval('semel_token'), o.xmin::text::bigint, o.id, o.namespace, o.tenant, o.route,
        o.key, o.state, o.token, o.nonce, o.fp_version, o.fp_digest, o.fp_paths,
        o.recovery, o.lease_us, o.run_max_us, o.ttl_us, o.window_us, o.attempts,
        o.created_at, o.attempt_at, o.lease_until, o.settled_at, o.subject, o.outcome,
        o.history
    FROM (SELECT 1) AS always LEFT JOIN semel_operation AS o ON o.id = operation;
END
$$;

-- Writes the completed record where semel_begin found none, or over exactly the row it found.
CREATE FUNCTION semel_finish(done semel_operation, replaced_version bigint, replaced_token bigint, replaced_nonce bytea)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name text := encode(done.id, 'hex');
BEGIN
    IF semel_joined() ->> name IS DISTINCT FROM encode(done.nonce, 'hex') THEN
        RAISE EXCEPTION 'this transaction has not begun the operation, or rolled back to before it had'
            USING ERRCODE = 'SM001', HINT = 'begin, effect and finish belong in one transaction';
    END IF;
    done.settled_at := greatest(done.attempt_at, semel_now());
    IF replaced_token IS NULL THEN
        INSERT INTO semel_operation SELECT done.*
        ON CONFLICT ON CONSTRAINT semel_operation_id DO NOTHING;
    ELSE
        UPDATE semel_operation AS o
        SET token = done.token, created_at = done.created_at, attempt_at = done.attempt_at,
            lease_until = done.lease_until, settled_at = done.settled_at, sweep_at = done.sweep_at,
            lease_us = done.lease_us, run_max_us = done.run_max_us, ttl_us = done.ttl_us,
            window_us = done.window_us, fp_version = done.fp_version, attempts = done.attempts,
            state = done.state, recovery = done.recovery, nonce = done.nonce, fp_digest = done.fp_digest,
            fp_paths = done.fp_paths, subject = done.subject, outcome = done.outcome, history = done.history
        WHERE o.id = done.id
            AND o.token = replaced_token
            AND o.nonce = replaced_nonce
            AND o.xmin::text::bigint = replaced_version;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'somebody outside this transaction came in between'
            USING ERRCODE = 'SM002', HINT = 'roll back and try the whole transaction again';
    END IF;
    PERFORM set_config(
        'semel.joined', (semel_joined() || jsonb_build_object(name, 'done ' || encode(done.nonce, 'hex')))::text, true
    );
END
$$;

-- Fails the transaction, for a caller who found out by itself that it must not commit.
CREATE FUNCTION semel_fail(why text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '%', why USING ERRCODE = 'SM004';
END
$$;

-- Fails the transaction unless the outcome of an attempt is still part of it: sent in one message with COMMIT. It fails
-- as well after an error that was ignored, where COMMIT by itself would roll back and report success.
CREATE FUNCTION semel_sure(operation bytea, attempt bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF semel_joined() ->> encode(operation, 'hex') IS DISTINCT FROM 'done ' || encode(attempt, 'hex') THEN
        RAISE EXCEPTION 'the outcome is not part of this transaction: it was rolled back to a savepoint before it'
            USING ERRCODE = 'SM001', HINT = 'effect and finish belong at the same level';
    END IF;
END
$$;

-- Whether an attempt committed, once its transaction is certainly over: waits for the operation's lock.
-- Only under READ COMMITTED is the record read after that, and only the primary has the lock.
CREATE FUNCTION semel_resolve(operation bytea, attempt bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'what became of a commit is known to the primary only; this server is a standby'
            USING ERRCODE = 'SM003', HINT = 'ask on a connection to the primary: locks and late commits are not here';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'what became of a commit can be read under READ COMMITTED only'
            USING ERRCODE = 'SM003', HINT = 'ask on a connection that has no transaction open';
    END IF;
    PERFORM semel_lock(operation, true);
    RETURN EXISTS (SELECT FROM semel_operation AS o WHERE o.id = operation AND o.nonce = attempt);
END
$$;
