INSERT INTO lanes (queue, kind) VALUES ?*2
