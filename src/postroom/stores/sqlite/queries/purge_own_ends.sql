-- ?1: seqs of jobs that are about to be removed; ?2: up to this time. Their last ends, as far as no picture needs them.
DELETE FROM ends WHERE (at, seq) IN (
    SELECT finished_at, seq FROM jobs WHERE seq IN (SELECT value FROM json_each(?1)) AND finished_at <= ?2
)
