-- How long a transaction took, for all its messages. Changes no row if it is not the one that received them.
UPDATE semel_inbox_batch SET took_us = ?, messages = ? WHERE batch = ? AND took_us IS NULL
