-- ?1: owner or NULL, ?2: now. When the job that waits longest became due.
SELECT min((
    SELECT run_at FROM jobs
    WHERE jobs.lane = lanes.lane AND state = 'queued' AND run_at <= ?2 AND (?1 IS NULL OR owner = ?1)
    ORDER BY run_at LIMIT 1
))
FROM lanes
