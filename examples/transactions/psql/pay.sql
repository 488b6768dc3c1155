-- Pays once, in one transaction: psql URL -qXAt -v ON_ERROR_STOP=1 -v key=KEY -v amount=AMOUNT -f pay.sql
--
-- Prints what happened and what to answer: `fresh 201 {...}`, `replay 201 {...}`, or why not.
BEGIN;

SELECT decision, status, convert_from(body, 'UTF8') AS body, operation, decision = 'run' AS run
FROM semel_claim('shop', 'alice', 'pay', :'key', convert_to(:'amount', 'UTF8')) \gset

\if :run
    INSERT INTO payment (tenant, request) VALUES ('alice', convert_to(:'amount', 'UTF8')) RETURNING id \gset
    SELECT '{"payment": ' || :id || '}' AS body \gset
    SELECT semel_enqueue('payments.made', 'payment-' || :id, convert_to(:'body', 'UTF8')) AS message \gset
    SELECT semel_complete(:'operation', 201, 'application/json', convert_to(:'body', 'UTF8')) AS done \gset
    \set decision fresh
    \set status 201
\endif

COMMIT;

\echo :decision :status :body
