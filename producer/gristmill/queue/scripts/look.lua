#!lua flags=no-writes
--[[ One consistent look at a job.
KEYS  meta waiting suspects
gives {now_ms, waiting, suspects, (field, value)...}   no field when there is no such job ]]
local t = redis.call('TIME')
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, redis.call('ZCARD', KEYS[3]))
table.insert(reply, 1, redis.call('ZCARD', KEYS[2]))
table.insert(reply, 1, t[1] * 1000 + math.floor(t[2] / 1000))
return reply
