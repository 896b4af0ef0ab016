-- As pick.sql, for when a row among them cannot be read: their numbers.
SELECT heads.seq
FROM json_each(?1) AS lanes
JOIN jobs AS heads ON heads.seq IN (
    SELECT seq FROM jobs
    WHERE lane = lanes.value AND state = 'queued' AND place IS NOT NULL
        AND (start_by IS NULL OR start_by > ?3)
    ORDER BY rank, place, job_id LIMIT ?2
)
ORDER BY heads.rank, heads.place, heads.job_id LIMIT ?2
