-- Makes the caller's transaction unable to commit.
SELECT semel_fail($1)
