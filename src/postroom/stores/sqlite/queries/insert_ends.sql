INSERT INTO ends (at, seq, version, owner, state, seconds) VALUES ?*6
