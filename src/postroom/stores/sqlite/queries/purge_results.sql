-- ?1: seqs.
DELETE FROM results WHERE seq IN (SELECT value FROM json_each(?1))
