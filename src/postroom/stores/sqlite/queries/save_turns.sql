INSERT OR REPLACE INTO turns (queue, rank, share, place) VALUES ?*4
