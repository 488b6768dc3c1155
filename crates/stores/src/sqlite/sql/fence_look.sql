-- What a resource gave, and who wrote to it last.
SELECT given, last FROM semel_fence WHERE resource = ?1;
