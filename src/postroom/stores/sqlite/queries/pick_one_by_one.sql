-- As pick.sql, for when a row among them cannot be read: their numbers.
SELECT job_rows.seq
FROM json_each(?1) AS lanes
JOIN jobs AS job_rows ON job_rows.seq IN (
    SELECT seq FROM jobs
    WHERE lane = lanes.value AND state = 'queued' AND place IS NOT NULL
        AND (start_by IS NULL OR start_by > ?3)
    ORDER BY rank, place, job_id LIMIT ?2
)
ORDER BY rank, place, job_id LIMIT ?2
