-- Identity and mark.
SELECT store_id, epoch, token FROM semel_meta;
