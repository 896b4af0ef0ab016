-- ?1: job id, ?2: kind or NULL, ?3: after this key or NULL, ?4: at most so many or -1.
SELECT kind, key, value, error, is_final, input_digest, usage, epoch
FROM checkpoints
WHERE seq = (SELECT seq FROM jobs WHERE job_id = ?1)
    AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR key > ?3)
ORDER BY kind, key LIMIT ?4
