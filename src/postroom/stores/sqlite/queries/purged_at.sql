SELECT at FROM purged WHERE job_id = ?1
