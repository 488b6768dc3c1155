-- What does not change while a store lives.
SELECT store_id, semel_outbox_lanes() AS lanes FROM semel_meta
