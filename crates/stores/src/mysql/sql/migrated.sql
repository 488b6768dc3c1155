-- Whether a store was made here, or begun.
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'semel_schema'
