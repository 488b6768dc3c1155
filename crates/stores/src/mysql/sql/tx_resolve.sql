-- The lock of an operation, waited for. With no transaction open it is let go at once: who had it is done.
SELECT slot FROM semel_slot WHERE slot = ? FOR UPDATE
