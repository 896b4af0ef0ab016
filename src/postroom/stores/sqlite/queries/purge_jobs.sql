-- ?1: seqs.
DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?1))
