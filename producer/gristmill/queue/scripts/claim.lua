#!lua flags=allow-oom
--[[ Hands out indices to a worker's token: suspects by their own rule, else due retries, then fresh ones.
KEYS  meta workers held waiting suspects history done runs
ARGV  epoch token want(1..1000) max_bytes ttl_ms believed(0|1) suspects(0|1|2) company
      max_bytes: about so many payload bytes, by the average of each run; at least one index is given
      believed: the worker believes that its token has a lease
      suspects: 0 none; 1 as many as there may be, else plain ones; 2 nothing but suspects
      company: so many suspects at most
gives {status, state, version, alone, results_full, suspects, claim, ranges, (run, first, count)..., (index, run, attempts, crashes, kind, first)...}
      suspects: how many wait and are due
      kind: 0 plain, 1 suspect, 2 poison (to be failed without running it)
      first: when it was claimed for the first time, ms; 0 is now
      OK
      EMPTY  nothing to hand out now; also when the job's deadline has passed
      IDLE   the job is not running
      LOST   the token was reaped
      AGAIN  only done indices were met (after the store lost a suffix): ask again
      GONE
A done index is never handed out: after a lost suffix, records sent again may lie before the hand-out position.
Suspects go to a token that holds nothing and asks for them, in no larger company than the smallest cohort among
them, and it gets nothing else while it holds them. Their claim number is kept negative in `held`.
Until the setup is proven, at most first_alone indices are in flight, all with one token.
crash one script: the indices are held by the token and come back when it is reaped ]]
--@include _past
local meta, workers, held, waiting, suspects, histories, done, runs =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local token, want, max_bytes = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'cur', 'prod', 'cur_run', 'in_flight', 'max_in_flight',
  'results_bytes', 'results_mark', 'first_alone', 'proven', 'last_claim', 'started_at', 'deadline')
local state, version = m[2] or 'deleting', tonumber(m[3] or 0)
local alone, full, suspected = 0, 0, 0
local function nothing(status) return {status, state, version, alone, full, suspected, 0, 0} end
if m[1] ~= ARGV[1] or state == 'deleting' then state = 'deleting' return nothing('GONE') end
if ARGV[6] == '1' and not redis.call('ZSCORE', workers, token) then return nothing('LOST') end
if state ~= 'running' then return nothing('IDLE') end

local cur, prod, cur_run, in_flight = tonumber(m[4]), tonumber(m[5]), tonumber(m[6]), tonumber(m[7])
local mine = redis.call('HLEN', held)
if mine > 0 and tonumber(redis.call('HRANDFIELD', held, 1, 'WITHVALUES')[2]) < 0 then return nothing('EMPTY') end
local cap, first_alone = tonumber(m[8]), tonumber(m[11])
if cap > 0 then want = math.min(want, cap - in_flight) end
if first_alone > 0 and m[12] ~= '1' then
  alone = 1
  if mine ~= in_flight then return nothing('EMPTY') end
  want = math.min(want, first_alone - in_flight)
end
if want <= 0 then return nothing('EMPTY') end

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local deadline = tonumber(m[15] or 0)
if deadline > 0 and now >= deadline then return nothing('EMPTY') end
suspected = redis.call('ZCOUNT', suspects, '-inf', now)
local claim = math.max(tonumber(m[13]) + 1, now)
local ranges, singles, fields = {}, {}, {}
local taken, spent, dropped, sign = 0, 0, 0, 1

local seen_first, seen_end, seen_run, seen_size = 0, 0, 0, 0
local function run_of(index)
  if index < seen_first or index >= seen_end then
    local row = redis.call('ZREVRANGEBYSCORE', runs, index, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local run, size = string.match(row[1], '^(%d+),(%d+)$')
    seen_run, seen_size, seen_first = tonumber(run), tonumber(size), tonumber(row[2])
    seen_end = tonumber(redis.call('ZRANGE', runs, seen_run + 1, seen_run + 1, 'WITHSCORES')[2] or prod)
  end
  return seen_run, seen_size
end
local function give(index, run, attempts, crashes, kind, first)
  local k = #singles
  singles[k + 1], singles[k + 2], singles[k + 3] = index, run, attempts
  singles[k + 4], singles[k + 5], singles[k + 6] = crashes, kind, first
  taken = taken + 1
end
-- Moves what is due out of a queue; pick(cohort) says whether one may join what was taken so far.
local function serve(queue, as_suspect, pick)
  local due = redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'LIMIT', 0, want)
  if #due == 0 then return end
  local texts, out = redis.call('HMGET', histories, unpack(due)), {}
  for i = 1, #due do
    local index = tonumber(due[i])
    local attempts, crashes, cohort, solo, first = past(texts[i])
    if redis.call('GETBIT', done, index) == 1 then
      dropped = dropped + 1
      out[#out + 1] = due[i]
    elseif pick(cohort) then
      local run, size = run_of(index)
      if taken > 0 and spent + size > max_bytes then break end
      spent = spent + size
      give(index, run, attempts, crashes, solo >= POISON and 2 or as_suspect, first)
      out[#out + 1] = due[i]
    end
  end
  if #out > 0 then redis.call('ZREM', queue, unpack(out)) end
end
local function range(run, first, count)
  local k = #ranges
  ranges[k + 1], ranges[k + 2], ranges[k + 3] = run, first, count
  taken = taken + count
end
local function range_without_done(run, first, stop)
  local from
  for index = first, stop do
    local free = index < stop and redis.call('GETBIT', done, index) == 0
    if free and not from then from = index end
    if not free then
      if from then range(run, from, index - from) from = nil end
      if index < stop then dropped = dropped + 1 end
    end
  end
end
local function serve_fresh()
  while taken < want and cur < prod do
    local rows = redis.call('ZRANGE', runs, cur_run, cur_run + 1, 'WITHSCORES')
    local run, size = string.match(rows[1], '^(%d+),(%d+)$')
    run, size = tonumber(run), tonumber(size)
    local run_end = tonumber(rows[4] or prod)
    local k = math.min(want - taken, run_end - cur, math.floor((max_bytes - spent) / size))
    if k < 1 then
      if taken > 0 then return end
      k = 1
    end
    if redis.call('BITCOUNT', done, cur, cur + k - 1, 'BIT') == 0 then
      range(run, cur, k)
    else
      range_without_done(run, cur, cur + k)
    end
    cur, spent = cur + k, spent + k * size
    if cur == run_end then cur_run = cur_run + 1 end
  end
end

if ARGV[7] ~= '0' and mine == 0 and suspected > 0 then
  local most = tonumber(ARGV[8])
  serve(suspects, 1, function(cohort)
    local limit = math.min(most, cohort)
    if taken + 1 > limit then return false end
    most = limit
    return true
  end)
  if taken > 0 then sign = -1 end
end
if taken == 0 and ARGV[7] ~= '2' then
  serve(waiting, 0, function() return taken < want end)
  if cur < prod and tonumber(m[9]) > tonumber(m[10]) then full = 1 else serve_fresh() end
end
if taken == 0 and dropped == 0 then return nothing('EMPTY') end

version = version + 1
redis.call('HSET', meta, 'version', version, 'cur', cur, 'cur_run', cur_run, 'in_flight', in_flight + taken,
  'last_claim', claim)
if taken == 0 then return nothing('AGAIN') end
if not m[14] then redis.call('HSET', meta, 'started_at', now) end
local value = sign * claim
for i = 1, #singles, 6 do fields[#fields + 1] = singles[i] fields[#fields + 1] = value end
for i = 1, #ranges, 3 do
  for index = ranges[i + 1], ranges[i + 1] + ranges[i + 2] - 1 do
    fields[#fields + 1] = index
    fields[#fields + 1] = value
  end
end
redis.call('HSET', held, unpack(fields))
redis.call('ZADD', workers, now + tonumber(ARGV[5]), token)
local reply = {'OK', state, version, alone, full, suspected, claim, #ranges / 3}
for i = 1, #ranges do reply[#reply + 1] = ranges[i] end
for i = 1, #singles do reply[#reply + 1] = singles[i] end
return reply
