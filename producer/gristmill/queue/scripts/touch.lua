#!lua flags=allow-oom
--[[ Writes without changing anything, so that whoever then waits for the store's disk or replicas, on the same
connection, waits for all that was written before.
KEYS  meta
ARGV  epoch
gives {status, version}
      OK
      GONE
crash nothing ]]
local m = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'version')
if m[1] ~= ARGV[1] or m[2] == 'deleting' then return {'GONE', tonumber(m[3] or 0)} end
return {'OK', redis.call('HINCRBY', KEYS[1], 'version', 1)}
