-- What this server is and how it keeps its word. A list, because not every server has every variable.
SHOW GLOBAL VARIABLES WHERE Variable_name IN (
    'innodb_flush_log_at_trx_commit', 'innodb_read_only', 'log_bin', 'max_allowed_packet', 'read_only', 'server_uuid',
    'super_read_only', 'sync_binlog', 'version', 'wsrep_on'
)
