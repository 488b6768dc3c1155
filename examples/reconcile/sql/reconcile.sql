-- Answers a question. Parameters: derived key, token (of the question). It sets the fence and looks,
-- in one statement: from now on an attempt with such a token is refused, unless one began before.
--
--   status is not null   done, with status and body
--   token is not null    cannot tell: it began, and how it ended is not known here
--   otherwise            never; refused_through is the answer's
--
-- Commit before you answer.
INSERT INTO receipts (derived_key, refused_through)
VALUES ($1, $2)
ON CONFLICT (derived_key) DO UPDATE
    SET refused_through = CASE
        WHEN receipts.token IS NULL AND receipts.refused_through < excluded.refused_through
        THEN excluded.refused_through
        ELSE receipts.refused_through
    END
RETURNING status, token, body, refused_through;
