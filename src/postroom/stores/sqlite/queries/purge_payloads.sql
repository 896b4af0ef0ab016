-- ?1: seqs.
DELETE FROM payloads WHERE seq IN (SELECT value FROM json_each(?1))
