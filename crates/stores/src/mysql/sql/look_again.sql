-- When the sweeper shall look at records again. They are locked.
UPDATE semel_operation FORCE INDEX (PRIMARY)
SET sweep_at = CASE id /*each  */WHEN ? THEN ?/*each*/ END
WHERE id IN (/*each ,*/?/*each*/)
