#!lua flags=allow-oom
--[[ Ends a worker token's lease and puts back what it held.
KEYS  meta workers held waiting suspects history done
ARGV  epoch token force(0|1) crashed(0|1) delay_ms
      force: its process is known to be dead; else only a lease that has run out is ended
      crashed: the process died by itself, so something it held may have killed it
gives {status, version, moved, suspects, poisoned}
      OK
      NONE   no such token
      ALIVE  its lease has not run out
      GONE
After a crash each index may run as a suspect in half the company it was held in (half of the last, if that is less),
rounded down: of a company of less than 2^(k+1), one that kills its workers is a lone suspect after crash k + 1 at the
latest. One that was a lone suspect in POISON crashes is poison: it waits with the others, and is failed without running
it.
crash one script; a replay says NONE ]]
--@include _over
--@include _past
local meta, workers, held, waiting, suspects, histories, done =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, crashed = ARGV[2], ARGV[4] == '1'
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'in_flight', 'closed', 'n', 'done', 'redelivered')
local state, version = m[2], tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or state == 'deleting' then return {'GONE', version, 0, 0, 0} end
local deadline = redis.call('ZSCORE', workers, token)
if not deadline then return {'NONE', version, 0, 0, 0} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[3] ~= '1' and tonumber(deadline) > now then return {'ALIVE', version, 0, 0, 0} end

local pairs_held = redis.call('HGETALL', held)
local company = #pairs_held / 2
local moved, suspected, poisoned = 0, 0, 0
-- Notes in the index's history when it was first claimed, and a crash; gives the queue it belongs to.
local function note(index, claim)
  local was_suspect, queue = claim < 0, waiting
  if was_suspect then queue = suspects end
  local attempts, crashes, cohort, alone, first = past(redis.call('HGET', histories, index))
  if not crashed or alone >= POISON then
    redis.call('HSET', histories, index, history(attempts, crashes, cohort, alone, first, claim))
    return alone >= POISON and waiting or queue
  end
  local limit = company
  if cohort > 0 then limit = math.min(limit, cohort) end
  limit = math.max(math.floor(limit / 2), 1)
  if was_suspect and company == 1 then alone = alone + 1 end
  redis.call('HSET', histories, index, history(attempts, crashes + 1, limit, alone, first, claim))
  if alone >= POISON then
    poisoned = poisoned + 1
    return waiting
  end
  suspected = suspected + 1
  return suspects
end
if state ~= 'cancelled' and state ~= 'expired' then
  for i = 1, #pairs_held, 2 do
    local index = pairs_held[i]
    if redis.call('GETBIT', done, index) == 0 then
      redis.call('ZADD', note(index, tonumber(pairs_held[i + 1])), now + tonumber(ARGV[5]), index)
      moved = moved + 1
    end
  end
end
redis.call('UNLINK', held)
redis.call('ZREM', workers, token)
local in_flight = tonumber(m[4]) - company
version = version + 1
redis.call('HSET', meta, 'version', version, 'in_flight', in_flight, 'redelivered', tonumber(m[8]) + moved)
over(meta, done, state, m[5], tonumber(m[6] or 0), tonumber(m[7]), in_flight)
return {'OK', version, moved, suspected, poisoned}
