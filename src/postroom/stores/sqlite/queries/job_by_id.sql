-- ?1: job id. One job alone, for when a row among many cannot be read.
SELECT row FROM job_rows WHERE job_id = ?1
