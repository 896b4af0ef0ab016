-- ?1: now, ?2: at most so many. Jobs that became due or may move up a rank, in the order in which they could.
SELECT group_concat(json_array(wake_at, job_id, seq, queue, priority, owner, sender, rank, is_placed))
FROM (
    SELECT wake_at, job_id, seq, queue, priority, owner, sender, rank, place IS NOT NULL AS is_placed
    FROM jobs WHERE wake_at <= ?1 ORDER BY wake_at, job_id LIMIT ?2
)
