INSERT OR REPLACE INTO clocks (queue, rank, place) VALUES ?*3
