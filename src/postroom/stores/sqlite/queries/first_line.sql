-- ?1: job id. The first line of its journal.
SELECT line FROM payloads WHERE seq = (SELECT seq FROM jobs WHERE job_id = ?1)
