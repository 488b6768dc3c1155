-- Whoever configured more than a local flush keeps it; less is not durable.
SELECT set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true);
