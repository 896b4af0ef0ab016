-- ?1: arrays of queue, rank, share. The last places given to them.
SELECT group_concat(json_array(turns.queue, turns.rank, turns.share, turns.place))
FROM json_each(?1) AS asked
JOIN turns ON turns.queue = asked.value ->> 0 AND turns.rank = asked.value ->> 1 AND turns.share = asked.value ->> 2
