-- Waits for transactions that have written messages, and lets none begin to.
LOCK TABLE semel_outbox IN SHARE ROW EXCLUSIVE MODE
