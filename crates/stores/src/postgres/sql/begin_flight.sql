-- A batch: what it calls brings the other settings along.
BEGIN ISOLATION LEVEL READ COMMITTED;
