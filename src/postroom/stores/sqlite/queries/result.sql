SELECT body FROM results WHERE seq = (SELECT seq FROM jobs WHERE job_id = ?1)
