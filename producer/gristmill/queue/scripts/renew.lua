#!lua flags=allow-oom
--[[ Prolongs a worker token's lease.
KEYS  meta workers held
ARGV  epoch token ttl_ms
gives {status, state, version, held}   held: how many indices the token holds
      OK
      LOST  the token was reaped, or never claimed anything
      GONE
crash nothing: the version does not rise either, since a lost renewal costs nothing ]]
local m = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'version')
local version = tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or m[2] == 'deleting' then return {'GONE', 'deleting', version, 0} end
if not redis.call('ZSCORE', KEYS[2], ARGV[2]) then return {'LOST', m[2], version, 0} end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[2], t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[3]), ARGV[2])
return {'OK', m[2], version, redis.call('HLEN', KEYS[3])}
