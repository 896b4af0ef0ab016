SELECT body, keys FROM payloads WHERE seq = (SELECT seq FROM jobs WHERE job_id = ?1)
