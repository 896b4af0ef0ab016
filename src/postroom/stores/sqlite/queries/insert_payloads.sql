INSERT INTO payloads (seq, line, keys, body) VALUES ?*4
