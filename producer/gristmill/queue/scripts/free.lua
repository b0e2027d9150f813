#!lua flags=allow-oom
--[[ Frees what a cancelled or expired job will never send: payload runs, and the queues of what waited.
KEYS  meta waiting suspects history payload...
ARGV  epoch
gives {status, state, version, payload_bytes}   payload_bytes: what is left
      OK
      UNCHANGED  the job may still send
      GONE
crash between two calls: the rest is freed by the next caller ]]
local meta = KEYS[1]
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'payload_bytes')
local version = tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or m[2] == 'deleting' then return {'GONE', 'deleting', version, 0} end
local left = tonumber(m[4])
if m[2] ~= 'cancelled' and m[2] ~= 'expired' then return {'UNCHANGED', m[2], version, left} end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
local freed = 0
for k = 5, #KEYS do
  freed = freed + tonumber(redis.call('HGET', KEYS[k], '#') or 0)
  redis.call('UNLINK', KEYS[k])
end
if freed > 0 then
  version, left = version + 1, left - freed
  redis.call('HSET', meta, 'version', version, 'payload_bytes', left)
end
return {'OK', m[2], version, left}
