-- All of it travels as one message: if the first half fails, there is no second.
SELECT semel_sure($1, $2);
COMMIT
