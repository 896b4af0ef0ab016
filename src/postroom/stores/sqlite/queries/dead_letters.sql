-- ?1, ?2, ?3: owner, kind, failed since, each or NULL; ?4: at most so many groups; ?5: at most so many ids of each.
WITH dead AS (
    SELECT kind, error_code, error_group, finished_at, job_id, row_number() OVER (
        PARTITION BY kind, error_code, error_group ORDER BY finished_at, job_id
    ) AS nth
    FROM jobs
    WHERE state = 'failed' AND (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR kind = ?2)
    AND (?3 IS NULL OR finished_at >= ?3)
)
SELECT kind, error_code, error_group, count(*) AS number, min(finished_at), max(finished_at),
    group_concat(job_id ORDER BY nth) FILTER (WHERE nth <= ?5)
FROM dead GROUP BY kind, error_code, error_group
ORDER BY number DESC, kind, error_code, error_group LIMIT ?4
