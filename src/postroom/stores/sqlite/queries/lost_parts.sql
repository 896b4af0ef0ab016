-- ?1: at most so many. Jobs without their payload, results that a job says it has and that are not there, and strays.
SELECT 'job ' || job_id || ' has no payload' FROM jobs
WHERE NOT EXISTS (SELECT 1 FROM payloads WHERE payloads.seq = jobs.seq)
UNION ALL
SELECT 'job ' || job_id || ' has a result of ' || result_bytes || ' bytes that is not there as such' FROM jobs
WHERE result_bytes IS NOT NULL AND result_bytes IS NOT (
    SELECT octet_length(body) FROM results WHERE results.seq = jobs.seq
)
UNION ALL
SELECT 'row ' || seq || ' of ' || name || ' belongs to no job' FROM (
    SELECT seq, 'payloads' AS name FROM payloads
    UNION ALL SELECT seq, 'results' FROM results
    UNION ALL SELECT DISTINCT seq, 'checkpoints' FROM checkpoints
    UNION ALL SELECT DISTINCT seq, 'journal' FROM journal
) WHERE seq NOT IN (SELECT seq FROM jobs)
UNION ALL
SELECT 'job ' || job_id || ' was set aside: ' || broken FROM jobs WHERE broken IS NOT NULL
LIMIT ?1
