-- A token for a resource, above all that were given.
SELECT semel_lease($1) AS token
