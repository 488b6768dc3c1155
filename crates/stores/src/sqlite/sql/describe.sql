-- Identity, mark, and how long a generation is.
SELECT store_id, epoch, token, generation_bits FROM semel_meta;
