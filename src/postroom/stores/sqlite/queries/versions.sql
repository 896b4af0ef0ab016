-- ?1: job ids. Where each stands now: what a change must have been decided on, and its place in line.
SELECT group_concat(json_array(job_id, seq, version, rank, place, wake_at))
FROM jobs WHERE job_id IN (SELECT value FROM json_each(?1))
