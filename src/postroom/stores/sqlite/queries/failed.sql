-- ?1, ?2, ?3: owner, kind, failed since; ?4, ?5: code and masked message; each or NULL; ?6: at most so many.
SELECT job_id FROM jobs
WHERE state = 'failed' AND (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR kind = ?2)
    AND (?3 IS NULL OR finished_at >= ?3)
    AND (?4 IS NULL OR error_code = ?4) AND (?5 IS NULL OR error_group = ?5)
ORDER BY finished_at, job_id LIMIT ?6
