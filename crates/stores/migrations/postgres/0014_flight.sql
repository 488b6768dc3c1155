-- One batch of claims and completions in one call, which brings along what its transaction needs: a dozen settings in
-- front, each a statement, and an answer for every one of them, took the server a good part of what the batch did.

-- Claims first: so do all batches, and no circle of them waits for itself. What comes back with a token was granted, what
-- comes back without one was completed; about the others nothing is said here, and they are asked for one by one.
CREATE FUNCTION semel_fly(
    clock bigint, ids bytea[], namespaces text[], tenants text[], routes text[], keys text[], nonces bytea[],
    fp_versions integer[], fp_digests bytea[], fp_paths bytea[], recoveries smallint[], leases bigint[],
    run_maxes bigint[], ttls bigint[], windows bigint[], subjects text[],
    done_ids bytea[], done_tokens bigint[], done_nonces bytea[], outcomes bytea[],
    known_id bytea, known_token bigint
) RETURNS TABLE (id bytea, token bigint, created_at bigint)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    -- Before anything is given away: a pooler may have led an open connection to a standby that was promoted without the
    -- newest record this store knows of.
    IF known_token IS NOT NULL AND semel_is_lost(known_id, known_token) THEN
        RAISE EXCEPTION 'a record that was committed is not there' USING ERRCODE = 'SM009';
    END IF;
    -- Lasts until the transaction is over.
    PERFORM semel_durable();
    IF cardinality(ids) > 0 THEN
        RETURN QUERY SELECT granted.id, granted.token, granted.created_at FROM semel_claim_many(
            clock, ids, namespaces, tenants, routes, keys, nonces, fp_versions, fp_digests, fp_paths, recoveries,
            leases, run_maxes, ttls, windows, subjects
        ) AS granted;
    END IF;
    IF cardinality(done_ids) > 0 THEN
        RETURN QUERY SELECT done.id, NULL::bigint, NULL::bigint
        FROM semel_complete_many(clock, done_ids, done_tokens, done_nonces, outcomes) AS done;
    END IF;
END
$$;
