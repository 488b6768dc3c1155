-- The messages of the same transaction, after the record, in the same statement.
    , semel_enqueue_all($29, $30, $31, $32, $33, $34, $35, $36, $37, $38) AS messages
