SELECT group_concat(json_array(queue, rank, place)) FROM clocks
