-- Which store it is, and how far it has come.
SELECT store_id, epoch, token FROM semel_meta;
