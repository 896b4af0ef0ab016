-- ?1: arrays of job id, kind, key; ?2: bytes. Those of them that exist; of a larger one only its number, kind and key, to be
-- fetched alone: many values together could be longer than a text may be.
SELECT group_concat(CASE
    WHEN coalesce(octet_length(c.value), 0) + coalesce(octet_length(c.error), 0) <= ?2 THEN json_array(
        jobs.job_id, c.seq, c.kind, c.key, c.value, c.error, c.is_final, c.input_digest, c.usage, c.epoch)
    ELSE json_array(jobs.job_id, c.seq, c.kind, c.key)
END)
FROM json_each(?1) AS asked
JOIN jobs ON jobs.job_id = asked.value ->> 0
JOIN checkpoints AS c ON c.seq = jobs.seq AND c.kind = asked.value ->> 1 AND c.key = asked.value ->> 2
