-- Every lane that messages go to. Rows of others stay: a relay may hold one, and a sink may know how far it was.
SELECT lane, epoch, holder, lease_until FROM semel_outbox_lane
WHERE lane < (SELECT lanes FROM semel_outbox_meta) ORDER BY lane;
