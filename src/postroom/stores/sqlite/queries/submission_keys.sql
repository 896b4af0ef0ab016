-- ?1: after this number, ?2: at most so many. What repeats of a submission are recognised by, and what line 0 says of it.
SELECT jobs.seq, jobs.job_id, jobs.idempotency_key, jobs.body_digest,
    CASE WHEN json_valid(payloads.line) THEN payloads.line ->> '$[10].key' END AS sealed
FROM jobs JOIN payloads ON payloads.seq = jobs.seq
WHERE jobs.seq > ?1 AND (
    jobs.idempotency_key IS NOT NULL OR jobs.body_digest IS NOT NULL OR sealed IS NOT NULL
)
ORDER BY jobs.seq LIMIT ?2
