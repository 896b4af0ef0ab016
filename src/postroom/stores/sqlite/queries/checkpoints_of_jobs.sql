-- ?1: seqs. All checkpoints of some jobs, by job, kind and key.
SELECT seq, kind, key, value, error, is_final, input_digest, usage, epoch
FROM checkpoints WHERE seq IN (SELECT value FROM json_each(?1))
ORDER BY seq, kind, key
