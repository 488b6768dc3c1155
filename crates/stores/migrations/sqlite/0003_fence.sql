-- The tokens of resources: the last that was given, and the last that wrote. A counter for each resource,
-- never compared with the tokens of operations. Rows stay: a token must not come again.
CREATE TABLE semel_fence (
    resource TEXT PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 512),
    given INTEGER NOT NULL,
    -- 0: nobody has written yet.
    last INTEGER NOT NULL,
    passed_at INTEGER
) STRICT, WITHOUT ROWID;
