-- All of it travels as one message, and so is one transaction of its own.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT set_config('lock_timeout', $3::text, true), set_config('statement_timeout', '0', true);
SELECT semel_resolve($1, $2) AS committed
