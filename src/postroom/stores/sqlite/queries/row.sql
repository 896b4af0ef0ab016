-- ?1: seq. One job alone.
SELECT row, json_array(seq, rank, place, job_id) FROM job_rows WHERE seq = ?1
