-- The same operations from any language, with nothing but SQL: semel_claim, the application's own statements,
-- semel_complete, COMMIT. What is written here is what the Rust library writes, byte for byte, and either reads the
-- other's. Each statement can be run again.
--
-- Procedures and no functions: with a binary log, MySQL lets only a superuser make those. Errors of class SM mean that
-- the caller made a mistake, or must try the whole again: roll back. What gives a row has a form that ends in `_into` and
-- gives the same through OUT parameters, for procedures of the application.

-- A transaction must be open: a savepoint outlives its statement only in one.
DROP PROCEDURE IF EXISTS semel_inside;

CREATE PROCEDURE semel_inside()
SQL SECURITY INVOKER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
        SIGNAL SQLSTATE 'SM003' SET MESSAGE_TEXT = 'there is no transaction to join: START TRANSACTION first';
    SAVEPOINT semel_transaction;
    RELEASE SAVEPOINT semel_transaction;
END;

-- The fingerprint of a request under one of the store's keys: HMAC-SHA-256 over what stands for its bytes. NULL where
-- the store has no such key.
DROP PROCEDURE IF EXISTS semel_print;

CREATE PROCEDURE semel_print(IN in_request longblob, IN in_version int, OUT out_print varbinary(32))
READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_secret varbinary(32) DEFAULT (SELECT k.secret FROM semel_hash_key AS k WHERE k.version = in_version);
    DECLARE v_inner, v_outer varbinary(64) DEFAULT '';
    DECLARE v_at int DEFAULT 1;
    DECLARE v_word bigint unsigned;
    WHILE v_at <= 25 DO
        SET v_word = CAST(CONV(HEX(SUBSTRING(v_secret, v_at, 8)), 16, 10) AS UNSIGNED);
        SET v_inner = CONCAT(v_inner, UNHEX(LPAD(HEX(v_word ^ 3906369333256140342), 16, '0')));
        SET v_outer = CONCAT(v_outer, UNHEX(LPAD(HEX(v_word ^ 6655295901103053916), 16, '0')));
        SET v_at = v_at + 8;
    END WHILE;
    SET v_inner = CONCAT(v_inner, UNHEX(REPEAT('36', 32))), v_outer = CONCAT(v_outer, UNHEX(REPEAT('5C', 32)));
    -- A domain, a tag, a length, and the digest of the content.
    SET out_print = UNHEX(SHA2(CONCAT(v_inner, x'73656D656C2076616C7565203100', x'4F20', UNHEX(SHA2(in_request, 256))), 256));
    SET out_print = UNHEX(SHA2(CONCAT(v_outer, out_print), 256));
END;

-- The identity of an operation: SHA-256 over its parts, each with a tag and its length.
DROP PROCEDURE IF EXISTS semel_operation_id;

CREATE PROCEDURE semel_operation_id(
    IN in_namespace varchar(1024) CHARACTER SET utf8mb4, IN in_tenant varchar(1024) CHARACTER SET utf8mb4,
    IN in_route varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4,
    OUT out_id varbinary(32)
)
SQL SECURITY INVOKER
BEGIN
    IF COALESCE(LENGTH(in_key), 0) NOT BETWEEN 1 AND 255 OR LENGTH(in_key) <> CHAR_LENGTH(in_key) OR in_key REGEXP '[^!-~]' THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a key has 1 to 255 visible ASCII characters';
    END IF;
    IF COALESCE(LENGTH(in_namespace), 0) NOT BETWEEN 1 AND 512 OR COALESCE(LENGTH(in_route), 0) NOT BETWEEN 1 AND 512
        OR COALESCE(LENGTH(in_tenant), 1) NOT BETWEEN 1 AND 512 THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'namespace, tenant and route of an operation have 1 to 512 bytes';
    END IF;
    SET out_id = UNHEX(SHA2(CONCAT(
        CAST('semel op' AS BINARY),
        x'01', UNHEX(LPAD(HEX(LENGTH(in_namespace)), 4, '0')), CAST(in_namespace AS BINARY),
        IF(in_tenant IS NULL, x'030000',
            CONCAT(x'02', UNHEX(LPAD(HEX(LENGTH(in_tenant)), 4, '0')), CAST(in_tenant AS BINARY))),
        x'04', UNHEX(LPAD(HEX(LENGTH(in_route)), 4, '0')), CAST(in_route AS BINARY),
        x'05', UNHEX(LPAD(HEX(LENGTH(in_key)), 4, '0')), CAST(in_key AS BINARY)
    ), 256));
END;

-- A number in base 128, low digits first; the high bit says that more follow.
DROP PROCEDURE IF EXISTS semel_varint;

CREATE PROCEDURE semel_varint(IN in_number bigint, OUT out_bytes varbinary(10))
SQL SECURITY INVOKER
BEGIN
    SET out_bytes = '';
    WHILE in_number >= 128 DO
        SET out_bytes = CONCAT(out_bytes, UNHEX(LPAD(HEX(in_number & 127 | 128), 2, '0'))), in_number = in_number >> 7;
    END WHILE;
    SET out_bytes = CONCAT(out_bytes, UNHEX(LPAD(HEX(in_number), 2, '0')));
END;

-- Reads a number, and moves on to where the next thing begins, counted from 1.
DROP PROCEDURE IF EXISTS semel_read_varint;

CREATE PROCEDURE semel_read_varint(IN in_bytes longblob, INOUT at_byte bigint, OUT out_number bigint)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_digit, v_shift int DEFAULT 0;
    SET out_number = 0, v_digit = 128;
    WHILE v_digit >= 128 AND v_shift < 63 DO
        SET v_digit = ORD(SUBSTRING(in_bytes, at_byte, 1));
        SET out_number = out_number | (v_digit & 127) << v_shift;
        SET v_shift = v_shift + 7, at_byte = at_byte + 1;
    END WHILE;
END;

-- Reads what any of us stored. Not readable is what is sealed or of another version; the body is NULL where it was too
-- large to keep. Headers are an array of [name, value].
DROP PROCEDURE IF EXISTS semel_read_outcome;

CREATE PROCEDURE semel_read_outcome(
    IN in_stored longblob, OUT out_readable boolean, OUT out_status int, OUT out_content_type text CHARACTER SET utf8mb4,
    OUT out_headers longtext CHARACTER SET utf8mb4, OUT out_body longblob
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_at bigint DEFAULT 3;
    DECLARE v_lines, v_size, v_line, v_status bigint;
    DECLARE v_part int DEFAULT 1;
    DECLARE v_name, v_value text CHARACTER SET utf8mb4;
    SET out_readable = ORD(SUBSTRING(in_stored, 1, 1)) = 1, out_headers = '[]';
    SET out_status = NULL, out_content_type = NULL, out_body = NULL;
    IF out_readable THEN
        CALL semel_read_varint(in_stored, v_at, v_status);
        SET out_status = v_status;
        WHILE v_part <= 2 DO
            CALL semel_read_varint(in_stored, v_at, v_lines);
            SET v_line = 0;
            WHILE v_line < v_lines DO
                CALL semel_read_varint(in_stored, v_at, v_size);
                SET v_name = CONVERT(SUBSTRING(in_stored, v_at, v_size) USING utf8mb4), v_at = v_at + v_size;
                CALL semel_read_varint(in_stored, v_at, v_size);
                SET v_value = CONVERT(SUBSTRING(in_stored, v_at, v_size) USING utf8mb4), v_at = v_at + v_size;
                -- Trailers are not given back.
                IF v_part = 1 THEN
                    SET out_headers = JSON_ARRAY_APPEND(out_headers, '$', JSON_ARRAY(v_name, v_value));
                    IF LOWER(v_name) = 'content-type' THEN
                        SET out_content_type = COALESCE(out_content_type, v_value);
                    END IF;
                END IF;
                SET v_line = v_line + 1;
            END WHILE;
            SET v_part = v_part + 1;
        END WHILE;
        CALL semel_read_varint(in_stored, v_at, v_size);
        IF ORD(SUBSTRING(in_stored, 2, 1)) & 2 <> 0 THEN
            SET out_body = SUBSTRING(in_stored, v_at, v_size);
        END IF;
    END IF;
END;

-- Asks whether to run an operation in this transaction; gives one row. `decision` is one of
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
DROP PROCEDURE IF EXISTS semel_claim_into;

CREATE PROCEDURE semel_claim_into(
    IN in_namespace varchar(1024) CHARACTER SET utf8mb4, IN in_tenant varchar(1024) CHARACTER SET utf8mb4,
    IN in_route varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4,
    IN in_request longblob, IN in_ttl_seconds bigint, IN in_window_seconds bigint,
    IN in_subject mediumtext CHARACTER SET utf8mb4,
    OUT out_decision varchar(20) CHARACTER SET utf8mb4, OUT out_status int, OUT out_content_type text CHARACTER SET utf8mb4,
    OUT out_headers longtext CHARACTER SET utf8mb4, OUT out_body longblob, OUT out_operation varbinary(32),
    OUT out_attempt int
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_outcome, v_history longblob;
    DECLARE v_id, v_digest, v_print varbinary(32);
    DECLARE v_mine, v_nonce varbinary(16);
    DECLARE v_slot, v_version, v_newest, v_state, v_recovery, v_attempts int;
    DECLARE v_fresh, v_now, v_token, v_created, v_settled, v_lease, v_old_ttl, v_old_window bigint;
    DECLARE v_readable, v_over boolean DEFAULT FALSE;
    SET out_decision = NULL, out_status = NULL, out_content_type = NULL, out_headers = NULL, out_body = NULL;
    SET out_operation = NULL, out_attempt = NULL;
    IF in_request IS NULL OR in_ttl_seconds IS NULL OR in_ttl_seconds <= 30 OR in_window_seconds IS NULL
        OR in_window_seconds NOT BETWEEN 0 AND in_ttl_seconds OR in_ttl_seconds > 3155760000 THEN
        SIGNAL SQLSTATE 'SM004'
            SET MESSAGE_TEXT = 'a claim has a request, and a ttl above 30 seconds and not below the retry window';
    END IF;
    CALL semel_inside();
    CALL semel_operation_id(in_namespace, in_tenant, in_route, in_key, v_id);
    -- The slot is there and is not found: somebody else has it. MariaDB takes no NOWAIT in a procedure.
    SELECT s.slot INTO v_slot FROM semel_slot AS s
    WHERE s.slot = CAST(CONV(HEX(LEFT(v_id, 2)), 16, 10) AS UNSIGNED) DIV 4 FOR UPDATE SKIP LOCKED;
    IF v_slot IS NULL THEN
        -- Read without a lock, so that a row somebody holds is seen.
        IF (SELECT COUNT(*) FROM semel_slot) = 0 THEN
            SIGNAL SQLSTATE 'SM005' SET MESSAGE_TEXT = 'the table semel_slot is empty: a restore left it out; run semel migrate again';
        END IF;
        SET out_decision = 'in_flight';
    ELSE
        SET v_mine = UNHEX(LEFT(SHA2(CONCAT(UUID(), CONNECTION_ID(), RAND()), 256), 32));
        SET v_newest = (SELECT MAX(k.version) FROM semel_hash_key AS k);
        CALL semel_print(in_request, v_newest, v_print);
        INSERT INTO semel_token (n) VALUES (NULL);
        SET v_fresh = LAST_INSERT_ID(), v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        INSERT INTO semel_operation (
            id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
            lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, subject, sweep_at
        ) VALUES (
            v_id, in_namespace, in_tenant, in_route, in_key, 1, v_fresh, v_mine, v_newest, v_print, x'0101', 2,
            30000000, 300000000, in_ttl_seconds * 1000000, in_window_seconds * 1000000, 1, v_now, v_now,
            v_now + 30000000, in_subject, v_now + in_ttl_seconds * 1000000
        )
        ON DUPLICATE KEY UPDATE id = semel_operation.id;
        -- As it is now, whatever snapshot the transaction has.
        SELECT o.state, o.recovery, o.attempts, o.token, o.nonce, o.fp_version, o.fp_digest, o.created_at, o.settled_at,
            o.lease_until, o.ttl_us, o.window_us, o.outcome, o.history
        INTO v_state, v_recovery, v_attempts, v_token, v_nonce, v_version, v_digest, v_created, v_settled,
            v_lease, v_old_ttl, v_old_window, v_outcome, v_history
        FROM semel_operation AS o WHERE o.id = v_id FOR UPDATE;
        IF v_token = v_fresh AND v_nonce = v_mine THEN
            SET out_decision = 'run', out_attempt = 1;
        ELSE
            IF v_fresh <= v_token THEN
                SIGNAL SQLSTATE 'SM005' SET MESSAGE_TEXT =
                    'the store was restored from an older state: its next token is not above the last; acknowledge it first';
            END IF;
            -- Only ended records expire; an expired one counts as absent.
            SET v_over = v_state IN (2, 3, 5) AND v_now >= GREATEST(
                v_created + LEAST(v_old_ttl, 9223372036854775807 - v_created),
                v_settled + LEAST(v_old_window, 9223372036854775807 - v_settled)
            );
            IF NOT v_over THEN
                CALL semel_print(in_request, v_version, v_print);
                IF v_print IS NULL THEN
                    SET out_decision = 'incomparable';
                ELSEIF v_print <> v_digest THEN
                    SET out_decision = 'mismatch';
                ELSEIF v_state = 2 THEN
                    CALL semel_read_outcome(v_outcome, v_readable, out_status, out_content_type, out_headers, out_body);
                    SET out_decision = IF(NOT v_readable, 'unreadable', IF(out_body IS NULL, 'body_not_kept', 'replay'));
                ELSEIF v_state = 5 THEN
                    SET out_decision = 'purged';
                ELSEIF v_state = 4 OR v_state = 1 AND v_recovery <> 1 AND v_now >= v_lease THEN
                    SET out_decision = 'unknown';
                ELSEIF v_state = 1 AND v_now < v_lease THEN
                    SET out_decision = 'in_flight';
                END IF;
            END IF;
            IF out_decision IS NULL THEN
                -- Released, lapsed where it may run again, or expired.
                SET out_decision = 'run', out_attempt = IF(v_over, 1, v_attempts + 1), v_created = IF(v_over, v_now, v_created);
                UPDATE semel_operation AS o
                SET o.state = 1, o.recovery = 2, o.attempts = out_attempt, o.token = v_fresh, o.nonce = v_mine,
                    o.fp_version = IF(v_over, v_newest, v_version), o.fp_digest = v_print, o.fp_paths = x'0101',
                    o.created_at = v_created, o.attempt_at = v_now, o.lease_until = v_now + 30000000, o.settled_at = NULL,
                    o.sweep_at = v_created + in_ttl_seconds * 1000000, o.lease_us = 30000000, o.run_max_us = 300000000,
                    o.ttl_us = in_ttl_seconds * 1000000, o.window_us = in_window_seconds * 1000000,
                    o.subject = in_subject, o.outcome = NULL, o.history = IF(v_over, NULL, v_history)
                WHERE o.id = v_id;
            END IF;
        END IF;
        IF out_decision = 'run' THEN
            SET @semel_claimed = JSON_SET(COALESCE(@semel_claimed, '{}'), CONCAT('$."', HEX(v_id), '"'), v_fresh);
        END IF;
    END IF;
    SET out_operation = v_id;
END;

-- The same as one row.
DROP PROCEDURE IF EXISTS semel_claim_for;

CREATE PROCEDURE semel_claim_for(
    IN in_namespace varchar(1024) CHARACTER SET utf8mb4, IN in_tenant varchar(1024) CHARACTER SET utf8mb4,
    IN in_route varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4,
    IN in_request longblob, IN in_ttl_seconds bigint, IN in_window_seconds bigint,
    IN in_subject mediumtext CHARACTER SET utf8mb4
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_decision, v_content_type text CHARACTER SET utf8mb4;
    DECLARE v_headers longtext CHARACTER SET utf8mb4;
    DECLARE v_body longblob;
    DECLARE v_id varbinary(32);
    DECLARE v_status, v_attempt int;
    CALL semel_claim_into(
        in_namespace, in_tenant, in_route, in_key, in_request, in_ttl_seconds, in_window_seconds, in_subject,
        v_decision, v_status, v_content_type, v_headers, v_body, v_id, v_attempt
    );
    SELECT v_decision AS decision, v_status AS status, v_content_type AS content_type, v_headers AS headers,
        v_body AS body, v_id AS operation, v_attempt AS attempt;
END;

-- The same with an answer kept for a day, and retries for eight hours.
DROP PROCEDURE IF EXISTS semel_claim;

CREATE PROCEDURE semel_claim(
    IN in_namespace varchar(1024) CHARACTER SET utf8mb4, IN in_tenant varchar(1024) CHARACTER SET utf8mb4,
    IN in_route varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4, IN in_request longblob
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL semel_claim_for(in_namespace, in_tenant, in_route, in_key, in_request, 86400, 28800, NULL);
END;

-- Writes the answer of an operation that semel_claim said to run in this transaction. Every retry will get it. Of a body
-- larger than 1 MiB only the size is kept.
DROP PROCEDURE IF EXISTS semel_complete;

CREATE PROCEDURE semel_complete(
    IN in_operation varbinary(32), IN in_status int, IN in_content_type text CHARACTER SET utf8mb4, IN in_body longblob
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_path varchar(100) DEFAULT CONCAT('$."', HEX(in_operation), '"');
    DECLARE v_token, v_found bigint;
    DECLARE v_number, v_size varbinary(10);
    DECLARE v_head blob DEFAULT x'00';
    DECLARE v_outcome longblob;
    IF in_status IS NULL OR in_status NOT BETWEEN 0 AND 999 OR in_body IS NULL THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'an outcome has a status from 0 to 999 and a body, which may be empty';
    END IF;
    CALL semel_inside();
    SET v_token = CAST(JSON_UNQUOTE(JSON_EXTRACT(COALESCE(@semel_claimed, '{}'), v_path)) AS SIGNED);
    SELECT o.token INTO v_found FROM semel_operation AS o
    WHERE o.id = in_operation AND o.token = v_token AND o.state = 1 FOR UPDATE;
    IF v_found IS NULL THEN
        SIGNAL SQLSTATE 'SM001' SET MESSAGE_TEXT =
            'this transaction was not told to run the operation, or rolled back to before it was';
    END IF;
    IF in_content_type IS NOT NULL THEN
        CALL semel_varint(LENGTH(in_content_type), v_size);
        SET v_head = CONCAT(x'010C', CAST('content-type' AS BINARY), v_size, CAST(in_content_type AS BINARY));
    END IF;
    CALL semel_varint(in_status, v_number);
    IF LENGTH(in_body) <= 1048576 THEN
        CALL semel_varint(LENGTH(in_body), v_size);
        SET v_outcome = CONCAT(x'0102', v_number, v_head, x'00', v_size, in_body);
    ELSE
        CALL semel_varint(LENGTH(in_body) + 1, v_size);
        SET v_outcome = CONCAT(x'0100', v_number, v_head, x'00', v_size);
    END IF;
    UPDATE semel_operation AS o
    SET o.settled_at = GREATEST(o.attempt_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
        o.outcome = v_outcome, o.state = 2
    WHERE o.id = in_operation;
    SET @semel_claimed = JSON_REMOVE(@semel_claimed, v_path);
END;

-- Writes a message in this transaction, to be published if and only if it commits; gives its id. Messages of
-- one key keep their order if they are written while holding a lock of that key. Headers are a JSON object; `deliver_after`
-- is UTC.
DROP PROCEDURE IF EXISTS semel_enqueue_into;

CREATE PROCEDURE semel_enqueue_into(
    IN in_topic varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4,
    IN in_payload longblob, IN in_content_type text CHARACTER SET utf8mb4, IN in_headers longtext CHARACTER SET utf8mb4,
    IN in_correlation text CHARACTER SET utf8mb4, IN in_causation text CHARACTER SET utf8mb4,
    IN in_trace_parent text CHARACTER SET utf8mb4, IN in_deliver_after datetime(6), IN in_id char(36) CHARACTER SET utf8mb4,
    OUT out_id char(36) CHARACTER SET utf8mb4
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_lines mediumtext CHARACTER SET utf8mb4 DEFAULT '';
    DECLARE v_names longtext CHARACTER SET utf8mb4;
    DECLARE v_name, v_value text CHARACTER SET utf8mb4;
    DECLARE v_at int DEFAULT 0;
    DECLARE v_id varbinary(16);
    DECLARE v_random char(64);
    DECLARE v_now, v_due bigint;
    DECLARE v_lane int;
    CALL semel_inside();
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SET v_due = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', in_deliver_after);
    IF COALESCE(LENGTH(in_topic), 0) NOT BETWEEN 1 AND 249 OR LENGTH(in_topic) <> CHAR_LENGTH(in_topic)
        OR in_topic REGEXP '[^A-Za-z0-9_.-]' OR CONCAT('.', in_topic, '.') LIKE '%..%' THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT =
            'a topic has 1 to 249 letters, digits, ".", "_" or "-", and nothing empty between dots';
    END IF;
    IF COALESCE(LENGTH(in_key), 1) NOT BETWEEN 1 AND 512 OR in_payload IS NULL OR LENGTH(in_payload) > 16777216 THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT =
            'a message has a payload of at most 16 MiB, and a key of 1 to 512 bytes or none';
    END IF;
    SET v_names = JSON_KEYS(COALESCE(in_headers, '{}'));
    IF v_names IS NULL OR JSON_LENGTH(v_names) > 64 OR in_content_type IS NULL THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a message has a content type, and at most 64 headers as a JSON object';
    END IF;
    WHILE v_at < JSON_LENGTH(v_names) DO
        SET v_name = JSON_UNQUOTE(JSON_EXTRACT(v_names, CONCAT('$[', v_at, ']')));
        IF LENGTH(v_name) NOT BETWEEN 1 AND 249 OR LENGTH(v_name) <> CHAR_LENGTH(v_name) OR v_name REGEXP '[^a-z0-9-]'
            OR CAST(v_name AS BINARY) <> CAST(LOWER(v_name) AS BINARY) OR v_name LIKE 'semel-%' THEN
            SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT =
                'a header has a name of lower-case letters, digits and "-", not beginning with "semel-"';
        END IF;
        SET v_value = JSON_UNQUOTE(JSON_EXTRACT(in_headers, CONCAT('$."', v_name, '"')));
        IF LENGTH(v_value) > 4096 OR v_value REGEXP '[[:cntrl:]]' THEN
            SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a header has at most 4096 bytes and no control characters';
        END IF;
        SET v_lines = CONCAT(v_lines, v_name, ':', v_value, CHAR(10)), v_at = v_at + 1;
    END WHILE;
    IF GREATEST(
        LENGTH(in_content_type), COALESCE(LENGTH(in_correlation), 0), COALESCE(LENGTH(in_causation), 0),
        COALESCE(LENGTH(in_trace_parent), 0)
    ) > 4096 OR CONCAT_WS('', in_key, in_content_type, in_correlation, in_causation, in_trace_parent) REGEXP '[[:cntrl:]]'
    THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a text of a message is longer than 4096 bytes or has control characters';
    END IF;
    IF in_id IS NULL THEN
        -- Version 7: 48 bits of time in milliseconds before the random ones.
        SET v_random = SHA2(CONCAT(UUID(), CONNECTION_ID(), RAND()), 256);
        SET v_id = UNHEX(CONCAT(
            LPAD(HEX(v_now DIV 1000), 12, '0'), '7', SUBSTRING(v_random, 1, 3), '8', SUBSTRING(v_random, 4, 15)
        ));
    ELSE
        SET v_id = UNHEX(REPLACE(in_id, '-', ''));
        IF v_id IS NULL OR LENGTH(v_id) <> 16 THEN
            SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'the id of a message is a UUID';
        END IF;
    END IF;
    SET v_lane = CRC32(COALESCE(CAST(in_key AS BINARY), v_id)) % 8;
    IF v_due > v_now THEN
        INSERT INTO semel_outbox_delayed (
            lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent, deliver_after,
            payload
        ) VALUES (
            v_lane, v_id, v_now, in_topic, in_key, v_lines, in_content_type, in_correlation, in_causation, in_trace_parent,
            v_due, in_payload
        );
    ELSE
        INSERT INTO semel_outbox (
            lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent, deliver_after,
            payload
        ) VALUES (
            v_lane, v_id, v_now, in_topic, in_key, v_lines, in_content_type, in_correlation, in_causation, in_trace_parent,
            v_due, in_payload
        );
    END IF;
    SET v_random = LOWER(HEX(v_id));
    SET out_id = CONCAT_WS('-', LEFT(v_random, 8), SUBSTRING(v_random, 9, 4), SUBSTRING(v_random, 13, 4),
        SUBSTRING(v_random, 17, 4), SUBSTRING(v_random, 21, 12));
END;

-- The same for JSON without headers; gives one row, with the id.
DROP PROCEDURE IF EXISTS semel_enqueue;

CREATE PROCEDURE semel_enqueue(
    IN in_topic varchar(1024) CHARACTER SET utf8mb4, IN in_key varchar(1024) CHARACTER SET utf8mb4, IN in_payload longblob
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_id char(36) CHARACTER SET utf8mb4;
    CALL semel_enqueue_into(in_topic, in_key, in_payload, 'application/json', NULL, NULL, NULL, NULL, NULL, NULL, v_id);
    SELECT v_id AS id;
END;

-- Takes a message into the ledger of a group, in the transaction of its effect. `received` is one of
--   new        apply it, then COMMIT, then acknowledge it
--   duplicate  it was applied before; acknowledge it
--   conflict   another message had this id: acknowledge neither; look who gives the same id twice
--   aside      it was set aside and waits for an operator
--   open       a call for it began elsewhere and its result is not known
-- A second delivery at the same time waits for the first, and then is what that made of it.
DROP PROCEDURE IF EXISTS semel_consume_into;

CREATE PROCEDURE semel_consume_into(
    IN in_group varchar(4096) CHARACTER SET utf8mb4, IN in_source varchar(4096) CHARACTER SET utf8mb4,
    IN in_id varchar(4096) CHARACTER SET utf8mb4, IN in_payload longblob,
    OUT out_received varchar(20) CHARACTER SET utf8mb4
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_batch, v_written, v_now bigint;
    DECLARE v_state int;
    DECLARE v_hash, v_old varbinary(32);
    IF COALESCE(in_group, '') = '' OR COALESCE(in_source, '') = '' OR COALESCE(in_id, '') = '' OR in_payload IS NULL THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a message has a group, a source, an id of its producer and a payload';
    END IF;
    -- Parameters are wider than what fits, so that a session without strict mode cuts nothing unnoticed.
    IF CHAR_LENGTH(in_group) > 200 OR CHAR_LENGTH(in_source) > 200 OR CHAR_LENGTH(in_id) > 255
        OR in_id REGEXP '[[:cntrl:]]' THEN
        SIGNAL SQLSTATE 'SM004'
            SET MESSAGE_TEXT = 'a group and a source have at most 200 characters, an id 255 and no control characters';
    END IF;
    CALL semel_inside();
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_hash = UNHEX(SHA2(in_payload, 256));
    INSERT INTO semel_inbox_batch (grp, began_at, took_us, messages) VALUES (in_group, v_now, 0, 1);
    SET v_batch = LAST_INSERT_ID();
    INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
    VALUES (in_group, in_source, in_id, 2, LENGTH(in_payload), v_now, v_batch, v_hash)
    ON DUPLICATE KEY UPDATE grp = semel_inbox.grp;
    SELECT i.state, i.hash, i.batch INTO v_state, v_old, v_written FROM semel_inbox AS i
    WHERE i.grp = CAST(in_group AS BINARY) AND i.source = CAST(in_source AS BINARY) AND i.id = CAST(in_id AS BINARY)
    FOR UPDATE;
    SET out_received = CASE
        WHEN v_written = v_batch THEN 'new'
        WHEN v_old <> v_hash THEN 'conflict'
        ELSE ELT(v_state, 'open', 'duplicate', 'aside')
    END;
END;

-- The same as one row.
DROP PROCEDURE IF EXISTS semel_consume;

CREATE PROCEDURE semel_consume(
    IN in_group varchar(4096) CHARACTER SET utf8mb4, IN in_source varchar(4096) CHARACTER SET utf8mb4,
    IN in_id varchar(4096) CHARACTER SET utf8mb4, IN in_payload longblob
)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_received varchar(20) CHARACTER SET utf8mb4;
    CALL semel_consume_into(in_group, in_source, in_id, in_payload, v_received);
    SELECT v_received AS received;
END;

-- A token of a resource, larger than all it gave before. Take it in a transaction of its own, before the work.
DROP PROCEDURE IF EXISTS semel_lease;

CREATE PROCEDURE semel_lease(IN in_resource varchar(4096) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF COALESCE(LENGTH(in_resource), 0) NOT BETWEEN 1 AND 512 OR in_resource REGEXP '[[:cntrl:]]' THEN
        SIGNAL SQLSTATE 'SM004' SET MESSAGE_TEXT = 'a resource has a name of 1 to 512 bytes without control characters';
    END IF;
    -- The number is never given again, also if the transaction around this is rolled back.
    INSERT INTO semel_token (n) VALUES (NULL);
    INSERT INTO semel_fence (resource, given, last) VALUES (in_resource, LAST_INSERT_ID(), 0)
    ON DUPLICATE KEY UPDATE given = GREATEST(given, LAST_INSERT_ID());
    SELECT LAST_INSERT_ID() AS token;
END;

-- Passes the fence of a resource in the transaction of a write, before it; an error if a later token has written.
DROP PROCEDURE IF EXISTS semel_pass;

CREATE PROCEDURE semel_pass(IN in_resource varchar(4096) CHARACTER SET utf8mb4, IN in_token bigint)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_given, v_last bigint DEFAULT 0;
    CALL semel_inside();
    SELECT f.given, f.last INTO v_given, v_last FROM semel_fence AS f
    WHERE f.resource = CAST(in_resource AS BINARY) FOR UPDATE;
    IF in_token IS NULL OR in_token < 1 OR in_token > v_given THEN
        SIGNAL SQLSTATE 'SM007' SET MESSAGE_TEXT = 'no lease of this resource gave the token';
    END IF;
    IF in_token < v_last THEN
        SIGNAL SQLSTATE 'SM006' SET MESSAGE_TEXT = 'a later token has written: roll back';
    END IF;
    UPDATE semel_fence AS f SET f.last = in_token, f.passed_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    WHERE f.resource = CAST(in_resource AS BINARY);
END;
