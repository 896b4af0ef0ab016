-- ?1: lanes, ?2: now. When the first of their delayed jobs becomes due.
SELECT min((
    SELECT run_at FROM jobs
    WHERE lane = lanes.value AND state = 'queued' AND run_at > ?2
    ORDER BY run_at LIMIT 1
))
FROM json_each(?1) AS lanes
