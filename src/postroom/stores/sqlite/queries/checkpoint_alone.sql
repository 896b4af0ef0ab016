-- ?1: seq, ?2: kind, ?3: key.
SELECT kind, key, value, error, is_final, input_digest, usage, epoch
FROM checkpoints WHERE seq = ?1 AND kind = ?2 AND key = ?3
