INSERT OR REPLACE INTO results (seq, body) VALUES ?*2
