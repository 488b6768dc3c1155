-- Whether an attempt has written its outcome in this transaction: asked of what is there now, whatever snapshot the transaction has.
SELECT state FROM semel_operation WHERE id = ? AND nonce = ? AND state = 2 FOR UPDATE
