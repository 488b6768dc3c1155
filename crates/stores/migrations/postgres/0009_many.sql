-- What a store asks all the time, as functions: statements are unnamed, for poolers, and so are planned each time, which
-- took a third of what the server did for a batch. A function keeps its plans in the session, whoever is between. They
-- are made on an empty table and used on a full one, so they leave the planner no choice.

-- Insert-if-absent for many operations. Those that come back were granted; for the others somebody was there before.
CREATE FUNCTION semel_claim_many(
    clock bigint, ids bytea[], namespaces text[], tenants text[], routes text[], keys text[], nonces bytea[],
    fp_versions integer[], fp_digests bytea[], fp_paths bytea[], recoveries smallint[], leases bigint[],
    run_maxes bigint[], ttls bigint[], windows bigint[], subjects text[]
) RETURNS TABLE (id bytea, token bigint, created_at bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH moment AS MATERIALIZED (SELECT coalesce($1, semel_now()) AS now)
    INSERT INTO semel_operation AS o (
        token, state, attempts, created_at, attempt_at, lease_until, sweep_at,
        id, namespace, tenant, route, key, nonce, fp_version, fp_digest,
        fp_paths, recovery, lease_us, run_max_us, ttl_us, window_us, subject
    )
    SELECT
        nextval('semel_token'), 1, 1, moment.now, moment.now,
        moment.now + least(wish.lease_us, 9223372036854775807 - moment.now),
        moment.now + least(wish.ttl_us, 9223372036854775807 - moment.now),
        wish.*
    FROM moment, unnest(
        $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16
    ) AS wish (
        id, namespace, tenant, route, key, nonce, fp_version, fp_digest,
        fp_paths, recovery, lease_us, run_max_us, ttl_us, window_us, subject
    )
    ON CONFLICT (id) DO NOTHING
    RETURNING o.id, o.token, o.created_at;
END
$$;

-- Stores outcomes of attempts that still hold their leases, and says whose. Everybody else is told nothing here and asks
-- again one by one.
CREATE FUNCTION semel_complete_many(
    clock bigint, ids bytea[], tokens bigint[], nonces bytea[], outcomes bytea[]
) RETURNS TABLE (id bytea)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH moment AS MATERIALIZED (SELECT coalesce($1, semel_now()) AS now)
    UPDATE semel_operation AS o
    SET state = 2, settled_at = moment.now, outcome = done.outcome
    FROM moment, unnest($2, $3, $4, $5) AS done (id, token, nonce, outcome)
    WHERE o.id = done.id
        AND o.token = done.token
        AND o.nonce = done.nonce
        AND o.state = 1
    RETURNING o.id;
END
$$;
