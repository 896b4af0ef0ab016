INSERT INTO payloads (seq, keys, body) VALUES ?*3
