-- The same operations from any language, with nothing but SQL: semel_claim, the application's own statements,
-- semel_complete, COMMIT. Whatever is written here is what the Rust library writes, byte for byte, and either
-- reads the other's.
--
-- Errors of class SM abort the transaction: the caller made a mistake, or must try the whole again.

-- Refuses names that no scope could have.
CREATE FUNCTION semel_part(part text, name text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'the % of an operation has 1 to 512 bytes', part USING ERRCODE = 'SM004';
    END IF;
    RETURN int2send(octet_length(name)::smallint) || convert_to(name, 'UTF8');
END
$$;

-- The identity of an operation: SHA-256 over its parts, each with a tag and its length.
CREATE FUNCTION semel_operation_id(namespace text, tenant text, route text, key text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    -- Visible ASCII, and nothing that could be taken for another key.
    IF key IS NULL OR key !~ '^[!-~]{1,255}$' THEN
        RAISE EXCEPTION 'a key has 1 to 255 visible ASCII characters' USING ERRCODE = 'SM004';
    END IF;
    RETURN sha256(
        convert_to('semel op', 'UTF8')
        || '\x01' || semel_part('namespace', namespace)
        || CASE WHEN tenant IS NULL THEN '\x030000'::bytea ELSE '\x02' || semel_part('tenant', tenant) END
        || '\x04' || semel_part('route', route)
        || '\x05' || semel_part('key', key)
    );
END
$$;

-- Each byte of a key of at most 64 bytes, filled up with zeros, combined with one that stays the same.
CREATE FUNCTION semel_pad(secret bytea, with_byte integer) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    padded bytea := secret || decode(repeat('00', 64 - octet_length(secret)), 'hex');
BEGIN
    FOR at IN 0..63 LOOP
        padded := set_byte(padded, at, get_byte(padded, at) # with_byte);
    END LOOP;
    RETURN padded;
END
$$;

-- The fingerprint of a request under one of the store's keys: HMAC-SHA-256 over what stands for its bytes.
-- NULL where the store has no such key.
CREATE FUNCTION semel_print(request bytea, key_version integer) RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
DECLARE
    secret bytea := (SELECT k.secret FROM semel_hash_key AS k WHERE k.version = key_version);
    -- A domain, a tag, a length, and the digest of the content.
    canonical bytea := convert_to('semel value 1', 'UTF8') || '\x00' || '\x4f20' || sha256(request);
BEGIN
    RETURN sha256(semel_pad(secret, 92) || sha256(semel_pad(secret, 54) || canonical));
END
$$;

-- A number in base 128, low digits first; the high bit says that more follow.
CREATE FUNCTION semel_varint(number bigint) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bytes bytea := '';
BEGIN
    WHILE number >= 128 LOOP
        bytes := bytes || set_byte('\x00'::bytea, 0, (number & 127 | 128)::integer);
        number := number >> 7;
    END LOOP;
    RETURN bytes || set_byte('\x00'::bytea, 0, number::integer);
END
$$;

-- Reads a number, and says where the next thing begins.
CREATE FUNCTION semel_read_varint(bytes bytea, at integer, OUT number bigint, OUT next integer)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    shift integer := 0;
    digit integer := 128;
BEGIN
    number := 0;
    next := at;
    WHILE digit >= 128 LOOP
        digit := get_byte(bytes, next);
        number := number | ((digit & 127)::bigint << shift);
        shift := shift + 7;
        next := next + 1;
    END LOOP;
END
$$;

-- An answer as stores keep it. Of a body larger than 1 MiB only the size is kept.
CREATE FUNCTION semel_outcome(status integer, content_type text, body bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    kept boolean := octet_length(body) <= 1048576;
    head bytea := '\x00';
BEGIN
    IF status IS NULL OR status NOT BETWEEN 0 AND 999 OR body IS NULL THEN
        RAISE EXCEPTION 'an outcome has a status from 0 to 999 and a body, which may be empty' USING ERRCODE = 'SM004';
    END IF;
    IF content_type IS NOT NULL THEN
        head := '\x01' || semel_varint(12) || convert_to('content-type', 'UTF8')
            || semel_varint(octet_length(convert_to(content_type, 'UTF8'))) || convert_to(content_type, 'UTF8');
    END IF;
    RETURN '\x01' || CASE WHEN kept THEN '\x02'::bytea ELSE '\x00'::bytea END || semel_varint(status)
        || head || '\x00'
        || CASE WHEN kept THEN semel_varint(octet_length(body)) || body ELSE semel_varint(octet_length(body) + 1) END;
END
$$;

-- Reads what any of us stored. `readable` is false for what is sealed or of another version; `body` is NULL where
-- it was too large to keep. Headers are an array of [name, value].
CREATE FUNCTION semel_read_outcome(
    stored bytea, OUT readable boolean, OUT status integer, OUT content_type text, OUT headers jsonb, OUT body bytea
)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    flags integer;
    lines bigint;
    size bigint;
    number bigint;
    at integer;
    name text;
    value bytea;
BEGIN
    readable := get_byte(stored, 0) = 1;
    headers := '[]';
    IF NOT readable THEN
        RETURN;
    END IF;
    flags := get_byte(stored, 1);
    SELECT r.number, r.next INTO number, at FROM semel_read_varint(stored, 2) AS r;
    status := number;
    FOR part IN 1..2 LOOP
        SELECT r.number, r.next INTO lines, at FROM semel_read_varint(stored, at) AS r;
        FOR line IN 1..lines LOOP
            SELECT r.number, r.next INTO size, at FROM semel_read_varint(stored, at) AS r;
            name := convert_from(substr(stored, at + 1, size::integer), 'UTF8');
            at := at + size;
            SELECT r.number, r.next INTO size, at FROM semel_read_varint(stored, at) AS r;
            value := substr(stored, at + 1, size::integer);
            at := at + size;
            -- Trailers are not given back; header values are shown as the bytes they are.
            IF part = 1 THEN
                headers := headers || jsonb_build_array(jsonb_build_array(name, encode(value, 'escape')));
                IF lower(name) = 'content-type' THEN
                    content_type := coalesce(content_type, encode(value, 'escape'));
                END IF;
            END IF;
        END LOOP;
    END LOOP;
    SELECT r.number, r.next INTO size, at FROM semel_read_varint(stored, at) AS r;
    IF flags & 2 <> 0 THEN
        body := substr(stored, at + 1, size::integer);
    END IF;
END
$$;

-- Asks whether to run an operation in this transaction. `decision` is one of
--   run            run it, then semel_complete, then COMMIT
--   replay         it has happened: status, content type, headers and body are what was answered
--   in_flight      another attempt is running; come back
--   mismatch       the key was used for another request
--   unknown        it may or may not have happened; nothing runs until that is settled
--   body_not_kept  it has happened, with this status; the answer was too large to keep
--   purged         it ended, and its answer was purged
--   unreadable     it has happened; the stored answer is sealed, or of another version
--   incomparable   the stored fingerprint was made with a key that is gone
-- Only after `run` is there anything to commit.
CREATE FUNCTION semel_claim(
    namespace text, tenant text, route text, key text, request bytea,
    ttl interval DEFAULT '24 hours', retry_window interval DEFAULT '8 hours', subject text DEFAULT NULL,
    OUT decision text, OUT status integer, OUT content_type text, OUT headers jsonb, OUT body bytea,
    OUT operation bytea, OUT attempt integer
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    mine bytea := uuid_send(gen_random_uuid());
    current semel_operation;
    work semel_operation;
    begun record;
    found record;
    newest integer;
    kept_us bigint := (extract(epoch FROM ttl) * 1000000)::bigint;
    window_us bigint := (extract(epoch FROM retry_window) * 1000000)::bigint;
BEGIN
    IF request IS NULL OR kept_us <= 30000000 OR kept_us < window_us OR window_us < 0 THEN
        RAISE EXCEPTION 'a claim has a request, and a ttl above 30 seconds and not below the retry window'
            USING ERRCODE = 'SM004';
    END IF;
    operation := semel_operation_id(namespace, tenant, route, key);
    SELECT * INTO begun FROM semel_begin(operation, mine);
    IF NOT begun.held THEN
        decision := 'in_flight';
        RETURN;
    END IF;
    -- What was read under the lock.
    newest := (SELECT max(k.version) FROM semel_hash_key AS k);
    attempt := 1;
    work.created_at := begun.now_us;
    IF begun.token IS NOT NULL THEN
        IF begun.fresh <= begun.token THEN
            RAISE EXCEPTION 'the store was restored from an older state: its next token % is not above %',
                begun.fresh, begun.token USING ERRCODE = 'SM005', HINT = 'acknowledge the restore first';
        END IF;
        -- Only ended records expire; an expired one counts as absent.
        IF NOT (begun.state IN (2, 3, 5) AND begun.now_us >= greatest(
            begun.created_at + least(begun.ttl_us, 9223372036854775807 - begun.created_at),
            begun.settled_at + least(begun.window_us, 9223372036854775807 - begun.settled_at)
        )) THEN
            IF semel_print(request, begun.fp_version) IS NULL THEN
                decision := 'incomparable';
            ELSIF semel_print(request, begun.fp_version) <> begun.fp_digest THEN
                decision := 'mismatch';
            ELSIF begun.state = 2 THEN
                SELECT * INTO found FROM semel_read_outcome(begun.outcome);
                decision := CASE
                    WHEN NOT found.readable THEN 'unreadable' WHEN found.body IS NULL THEN 'body_not_kept' ELSE 'replay'
                END;
                status := found.status;
                content_type := found.content_type;
                headers := found.headers;
                body := found.body;
            ELSIF begun.state = 5 THEN
                decision := 'purged';
            ELSIF begun.state = 4 OR begun.state = 1 AND begun.recovery <> 1 AND begun.now_us >= begun.lease_until THEN
                decision := 'unknown';
            ELSIF begun.state = 1 AND begun.now_us < begun.lease_until THEN
                decision := 'in_flight';
            ELSE
                -- Released, or lapsed where it may run again.
                newest := begun.fp_version;
                attempt := begun.attempts + 1;
                work.created_at := begun.created_at;
                work.history := begun.history;
            END IF;
        END IF;
    END IF;
    IF decision IS NOT NULL THEN
        attempt := NULL;
        RETURN;
    END IF;
    decision := 'run';
    work.token := begun.fresh;
    work.attempt_at := begun.now_us;
    work.lease_us := 30000000;
    work.run_max_us := 300000000;
    work.lease_until := begun.now_us + work.lease_us;
    work.ttl_us := kept_us;
    work.window_us := window_us;
    work.sweep_at := work.created_at + kept_us;
    work.fp_version := newest;
    work.fp_digest := semel_print(request, newest);
    -- Nothing is known about the parts of the request.
    work.fp_paths := '\x0101';
    work.attempts := attempt;
    work.recovery := 2;
    work.id := operation;
    work.nonce := mine;
    work.namespace := namespace;
    work.tenant := tenant;
    work.route := route;
    work.key := key;
    work.subject := subject;
    PERFORM set_config('semel.claimed', (
        coalesce(nullif(current_setting('semel.claimed', true), ''), '{}')::jsonb || jsonb_build_object(
            encode(operation, 'hex'), jsonb_build_object(
                'work', to_jsonb(work), 'version', begun.row_version, 'token', begun.token, 'nonce', begun.nonce
            )
        )
    )::text, true);
END
$$;

-- Writes the answer of an operation that semel_claim said to run in this transaction. Every retry will get it.
CREATE FUNCTION semel_complete(operation bytea, status integer, content_type text, body bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    claimed jsonb := nullif(current_setting('semel.claimed', true), '')::jsonb -> encode(operation, 'hex');
    done semel_operation;
BEGIN
    IF claimed IS NULL THEN
        RAISE EXCEPTION 'this transaction was not told to run the operation, or rolled back to before it was'
            USING ERRCODE = 'SM001', HINT = 'semel_claim, effect and semel_complete belong in one transaction';
    END IF;
    done := jsonb_populate_record(NULL::semel_operation, claimed -> 'work');
    done.state := 2;
    done.outcome := semel_outcome(status, content_type, body);
    PERFORM semel_finish(
        done, (claimed ->> 'version')::bigint, (claimed ->> 'token')::bigint, (claimed ->> 'nonce')::bytea
    );
END
$$;

-- Writes messages that were checked, one array per column, in the order they are to be published. Those whose time has
-- not come are kept apart.
CREATE FUNCTION semel_enqueue_all(
    ids text[], topics text[], keys text[], headers text[], content_types text[], payloads bytea[],
    correlations text[], causations text[], trace_parents text[], due bigint[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_us bigint := semel_now();
BEGIN
    PERFORM semel_durable();
    IF EXISTS (SELECT FROM unnest(due) AS d WHERE d > now_us) THEN
        INSERT INTO semel_outbox_delayed
            (id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after)
        SELECT m.id::uuid, m.topic, m.key, m.headers, m.content_type, m.payload, m.correlation, m.causation,
            m.trace_parent, m.due
        FROM unnest(
            ids, topics, keys, headers, content_types, payloads, correlations, causations, trace_parents, due
        ) WITH ORDINALITY AS m (
            id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, due, place
        )
        WHERE m.due > now_us
        ORDER BY m.place;
    END IF;
    INSERT INTO semel_outbox
        (id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after)
    SELECT m.id::uuid, m.topic, m.key, m.headers, m.content_type, m.payload, m.correlation, m.causation,
        m.trace_parent, m.due
    FROM unnest(
        ids, topics, keys, headers, content_types, payloads, correlations, causations, trace_parents, due
    ) WITH ORDINALITY AS m (
        id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, due, place
    )
    WHERE (m.due > now_us) IS NOT TRUE
    ORDER BY m.place;
    RETURN cardinality(ids);
END
$$;

-- Writes a message in this transaction, to be published if and only if it commits; gives its id. Messages of
-- one key keep their order if they are written while holding a lock of that key.
CREATE FUNCTION semel_enqueue(
    topic text, key text, payload bytea, content_type text DEFAULT 'application/json', headers jsonb DEFAULT '{}',
    correlation text DEFAULT NULL, causation text DEFAULT NULL, trace_parent text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    now_us bigint := semel_now();
    due bigint := (extract(epoch FROM deliver_after) * 1000000)::bigint;
    lines text := '';
    header record;
    known text;
BEGIN
    IF topic IS NULL OR topic !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' OR length(topic) > 249 THEN
        RAISE EXCEPTION 'a topic has 1 to 249 letters, digits, ".", "_" or "-", and nothing empty between dots'
            USING ERRCODE = 'SM004';
    END IF;
    IF octet_length(key) NOT BETWEEN 1 AND 512 OR payload IS NULL OR octet_length(payload) > 16777216 THEN
        RAISE EXCEPTION 'a message has a payload of at most 16 MiB, and a key of 1 to 512 bytes or none'
            USING ERRCODE = 'SM004';
    END IF;
    FOR header IN SELECT h.key AS name, h.value FROM jsonb_each_text(headers) AS h LOOP
        IF header.name !~ '^[a-z0-9-]{1,249}$' OR header.name ~ '^semel-' OR header.value IS NULL THEN
            RAISE EXCEPTION '"%" is no header of a message: lower-case letters, digits and "-", not beginning with "semel-"',
                header.name USING ERRCODE = 'SM004';
        END IF;
        lines := lines || header.name || ': ' || header.value || E'\n';
    END LOOP;
    IF (SELECT count(*) FROM jsonb_object_keys(headers)) > 64 OR content_type IS NULL THEN
        RAISE EXCEPTION 'a message has at most 64 headers, and a content type' USING ERRCODE = 'SM004';
    END IF;
    FOREACH known IN ARRAY ARRAY[key, content_type, correlation, causation, trace_parent]
        || ARRAY(SELECT h.value FROM jsonb_each_text(headers) AS h)
    LOOP
        IF octet_length(known) > 4096 OR known ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            RAISE EXCEPTION 'a text of a message is longer than 4096 bytes or has control characters' USING ERRCODE = 'SM004';
        END IF;
    END LOOP;
    IF id IS NULL THEN
        -- Version 7: 48 bits of time in milliseconds before the random ones.
        id := encode(set_byte(
            substr(int8send(now_us / 1000), 3) || substr(uuid_send(gen_random_uuid()), 7),
            6, get_byte(uuid_send(gen_random_uuid()), 6) & 15 | 112
        ), 'hex')::uuid;
    END IF;
    PERFORM semel_enqueue_all(
        ARRAY[id::text], ARRAY[topic], ARRAY[key], ARRAY[lines], ARRAY[content_type], ARRAY[payload],
        ARRAY[correlation], ARRAY[causation], ARRAY[trace_parent], ARRAY[due]
    );
    RETURN id;
END
$$;

-- Takes a message into the ledger of a group, in the transaction of its effect. The result is one of
--   new        apply it, then COMMIT, then acknowledge it
--   duplicate  it was applied before; acknowledge it
--   conflict   another message had this id: acknowledge neither; look who gives the same id twice
--   aside      it was set aside and waits for an operator
--   open       a call for it began elsewhere and its result is not known
-- A second delivery at the same time waits for the first, and then is what that made of it.
CREATE FUNCTION semel_consume(consumer text, source text, message_id text, payload bytea) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    old record;
BEGIN
    IF consumer IS NULL OR source IS NULL OR message_id IS NULL OR message_id = '' OR payload IS NULL THEN
        RAISE EXCEPTION 'a message has a group, a source, an id of its producer and a payload' USING ERRCODE = 'SM004';
    END IF;
    PERFORM semel_durable();
    LOOP
        INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash)
        VALUES (
            semel_now(), nextval('semel_inbox_batch_number'), octet_length(payload), 2, consumer, source, message_id,
            sha256(payload)
        )
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN 'new';
        END IF;
        SELECT i.state, i.hash INTO old
        FROM semel_inbox AS i
        WHERE i.grp = consumer AND i.source = source AND i.id = message_id;
        -- Else it was swept just now: try again.
        EXIT WHEN FOUND;
    END LOOP;
    IF old.hash <> sha256(payload) THEN
        RETURN 'conflict';
    END IF;
    RETURN (ARRAY['open', 'duplicate', 'aside'])[old.state];
END
$$;
