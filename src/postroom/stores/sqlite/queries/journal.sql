-- ?1: job id, ?2: after this n, ?3: at most so many.
SELECT n, at, event, from_state, to_state, epoch, attempt, life, actor, reason, data
FROM journal WHERE seq = (SELECT seq FROM jobs WHERE job_id = ?1) AND n > ?2
ORDER BY n LIMIT ?3
