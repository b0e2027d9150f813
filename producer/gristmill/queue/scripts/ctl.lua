#!lua flags=allow-oom
--[[ Walks the job's life: one event. The table is gristmill.contract.lifecycle's; a test holds the two together.
KEYS  meta done
ARGV  epoch event reason detail force(0|1)
gives {status, state, version, in_flight}
      OK         the state changed (or the reason of a pause)
      UNCHANGED  the event does not apply in this state; settle: something is in flight and it is not forced;
                 complete: not everything is done
      GONE       no job of this epoch
A resume forgets that the setup was proven, unless its reason is `proven`, and starts the failure budget anew; it counts
as progress. What was done stays done, so a resume may find the job complete.
crash one script ]]
--@include _over
local TO = {
  start = {created = 'running'},
  pause = {running = 'paused', paused = 'paused'},
  resume = {paused = 'running'},
  cancel = {created = 'cancelling', running = 'cancelling', paused = 'cancelling'},
  settle = {cancelling = 'cancelled'},
  expire = {running = 'expired', paused = 'expired'},
  complete = {running = 'complete', paused = 'complete', cancelling = 'complete'},
  delete = {created = 'deleting', running = 'deleting', paused = 'deleting', cancelling = 'deleting',
            cancelled = 'deleting', expired = 'deleting', complete = 'deleting', deleting = 'deleting'},
}
local meta, done, event = KEYS[1], KEYS[2], ARGV[2]
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'in_flight', 'closed', 'n', 'done', 'failed')
local version, in_flight = tonumber(m[3] or 0), tonumber(m[4] or 0)
if m[1] ~= ARGV[1] then return {'GONE', 'deleting', version, 0} end
local state, n = m[2], tonumber(m[6] or 0)
local to = TO[event][state]
if event == 'settle' and in_flight > 0 and ARGV[5] ~= '1' then to = nil end
if event == 'complete' and not (m[5] == '1' and redis.call('BITCOUNT', done) >= n) then to = nil end
if not to then return {'UNCHANGED', state, version, in_flight} end

version = version + 1
redis.call('HSET', meta, 'version', version, 'state', to)
if event == 'pause' then redis.call('HSET', meta, 'reason', ARGV[3], 'detail', ARGV[4]) end
if event == 'resume' then
  redis.call('HDEL', meta, 'reason', 'detail')
  redis.call('HSET', meta, 'proven', ARGV[3] == 'proven' and '1' or '0', 'done_base', m[7], 'failed_base', m[8])
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if event == 'resume' then redis.call('HSET', meta, 'progress_at', now) end
if to == 'cancelled' or to == 'expired' or to == 'complete' then redis.call('HSET', meta, 'finished_at', now) end
if event == 'resume' or event == 'cancel' then
  to = over(meta, done, to, m[5], n, redis.call('BITCOUNT', done), in_flight)
end
return {'OK', to, version, in_flight}
