-- The completed record, in the order of the table's columns, and the row it takes the place of.
SELECT semel_finish(
    ROW(
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
        $23, $24, $25
    )::semel_operation,
    $26, $27, $28
) AS finished
