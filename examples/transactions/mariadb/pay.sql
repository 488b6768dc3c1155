-- Pays once, in one transaction, from the shell of MariaDB or MySQL:
--   hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
--   { echo "SET @key = x'$(hex "$KEY")', @amount = x'$(hex "$AMOUNT")';"; cat pay.sql; } | mariadb -N DATABASE
--
-- Prints what happened and what to answer: `fresh 201 {...}`, `replay 201 {...}`, or why not. The shell cannot branch, so
-- the application's part is a procedure of its own; nothing is told before the COMMIT. Values come as digits: a client's key
-- may hold a quote.
DROP PROCEDURE IF EXISTS pay;

DELIMITER //
CREATE PROCEDURE pay(IN in_key varchar(255), IN in_amount varchar(100))
BEGIN
    DECLARE v_decision, v_type varchar(100);
    DECLARE v_headers longtext;
    DECLARE v_body longblob;
    DECLARE v_operation varbinary(32);
    DECLARE v_status, v_attempt int;
    DECLARE v_message char(36);
    DECLARE v_payment bigint;
    CALL semel_claim_into(
        'shop', 'alice', 'pay', in_key, in_amount, 86400, 28800, NULL,
        v_decision, v_status, v_type, v_headers, v_body, v_operation, v_attempt
    );
    IF v_decision = 'run' THEN
        INSERT INTO payment (tenant, request) VALUES ('alice', in_amount);
        SET v_payment = LAST_INSERT_ID();
        SET v_decision = 'fresh', v_status = 201, v_body = CONCAT('{"payment": ', v_payment, '}');
        CALL semel_enqueue_into(
            'payments.made', CONCAT('payment-', v_payment), v_body, 'application/json', NULL, NULL, NULL, NULL, NULL, NULL,
            v_message
        );
        CALL semel_complete(v_operation, v_status, 'application/json', v_body);
    END IF;
    SET @answer = CONCAT_WS(' ', v_decision, v_status, CONVERT(v_body USING utf8mb4));
END//
DELIMITER ;

START TRANSACTION;
CALL pay(@key, @amount);
COMMIT;
SELECT @answer;
