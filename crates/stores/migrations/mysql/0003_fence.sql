-- Operations in the application's own transaction, and fences for resources. Each statement can be run again.

-- Locks of operations: the one of an operation is the row its id's first 14 bits name. MySQL has no lock that
-- ends with the transaction, waits for nobody and belongs to something that is not there yet; a row that is
-- always there has one.
CREATE TABLE IF NOT EXISTS semel_slot (
    slot int NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

INSERT IGNORE INTO semel_slot (slot)
SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n + 256 * e.n + 1024 * f.n + 4096 * g.n
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS d
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS e
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS f
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS g;

-- The tokens of resources: the last that was given, and the last that wrote. The numbers are drawn from semel_token,
-- because a counter in a row goes back when its transaction does, and a token must not come again. They are never
-- compared with the tokens of operations. Rows stay: a writer that was overtaken must not pass.
CREATE TABLE IF NOT EXISTS semel_fence (
    resource   varbinary(512) NOT NULL PRIMARY KEY,
    given      bigint         NOT NULL,
    -- 0: nobody has written yet.
    last       bigint         NOT NULL,
    passed_at  bigint
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
