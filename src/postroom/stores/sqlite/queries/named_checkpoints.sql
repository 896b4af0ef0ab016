-- ?1: arrays of job id, kind, key. Those of them that exist.
SELECT group_concat(json_array(
    jobs.job_id, c.kind, c.key, c.value, c.error, c.is_final, c.input_digest, c.usage, c.epoch))
FROM json_each(?1) AS asked
JOIN jobs ON jobs.job_id = asked.value ->> 0
JOIN checkpoints AS c ON c.seq = jobs.seq AND c.kind = asked.value ->> 1 AND c.key = asked.value ->> 2
