-- The first generation above one and below another that has records.
SELECT min(generation) FROM semel_operation WHERE generation > ?1 AND generation < ?2;
