#!lua flags=allow-oom
--[[ Says that the input has ended: the job has n requests in so many runs, and can now become complete.
KEYS  meta done
ARGV  epoch runs n
gives {status, state, version, sealed_runs, n}
      OK         closed (also when it was closed with the same n before)
      GAP        the store has other runs or requests than the feeder sealed: it lost a suffix, the feeder rewinds
      CANCELLED GONE
crash one script: closed or not ]]
--@include _over
local meta, done = KEYS[1], KEYS[2]
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'closed', 'sealed_runs', 'prod', 'in_flight')
local state, version = m[2] or 'deleting', tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or state == 'deleting' then return {'GONE', 'deleting', version, 0, 0} end
local runs, n = tonumber(m[5]), tonumber(m[6])
if state == 'cancelled' or state == 'expired' then return {'CANCELLED', state, version, runs, n} end
if runs ~= tonumber(ARGV[2]) or n ~= tonumber(ARGV[3]) then return {'GAP', state, version, runs, n} end
if m[4] ~= '1' then
  version = version + 1
  redis.call('HSET', meta, 'version', version, 'closed', '1', 'n', n)
  state = over(meta, done, state, '1', n, redis.call('BITCOUNT', done), tonumber(m[7]))
end
return {'OK', state, version, runs, n}
