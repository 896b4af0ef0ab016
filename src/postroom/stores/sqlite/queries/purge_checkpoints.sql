-- ?1: seqs.
DELETE FROM checkpoints WHERE seq IN (SELECT value FROM json_each(?1))
