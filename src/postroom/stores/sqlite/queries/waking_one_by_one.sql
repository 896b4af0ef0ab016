-- As waking.sql, for when one of them cannot be read: only what can be trusted.
SELECT seq FROM jobs WHERE wake_at <= ?1 ORDER BY wake_at, job_id LIMIT ?2
