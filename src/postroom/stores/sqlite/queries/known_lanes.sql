SELECT group_concat(json_array(queue, kind, lane)) FROM lanes
