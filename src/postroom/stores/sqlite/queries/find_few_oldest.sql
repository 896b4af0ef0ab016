-- As find_oldest.sql, for states that few jobs are in: it looks through those, where the other looks through all ages.
SELECT created_at, job_id FROM jobs
WHERE seq IN (
    SELECT seq FROM jobs WHERE state = 'queued' AND instr(?2, '"queued"')
    UNION ALL
    SELECT seq FROM jobs WHERE state = 'running' AND instr(?2, '"running"')
    UNION ALL
    SELECT seq FROM jobs WHERE state = 'failed' AND instr(?2, '"failed"')
) AND
    (?1 IS NULL OR owner = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR kind IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR sender = ?4)
    AND (?5 IS NULL OR topic = ?5)
    AND (?6 IS NULL OR queue = ?6)
    AND created_at >= ?7 AND (created_at, job_id) > (?8, ?9)
ORDER BY created_at, job_id LIMIT ?10
