-- ?1: seqs.
DELETE FROM journal WHERE seq IN (SELECT value FROM json_each(?1))
