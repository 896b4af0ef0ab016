-- ?1: arrays of owner and idempotency key; ?2: job ids. The jobs that have them already.
SELECT group_concat(json_array(owner, idempotency_key, job_id, body_digest)) FROM (
    SELECT jobs.owner, jobs.idempotency_key, jobs.job_id, jobs.body_digest
    FROM json_each(?1) AS asked
    JOIN jobs ON jobs.owner = asked.value ->> 0 AND jobs.idempotency_key = asked.value ->> 1
    UNION ALL
    SELECT jobs.owner, jobs.idempotency_key, jobs.job_id, jobs.body_digest
    FROM json_each(?2) AS asked
    JOIN jobs ON jobs.job_id = asked.value
)
