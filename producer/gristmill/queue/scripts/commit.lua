#!lua flags=allow-oom
--[[ Takes a batch of terminal records, and indices given back unfinished.
KEYS  meta done held waiting suspects history unacked failures (block | payload)...
ARGV  epoch token groups (block, key of the block, key of the payload, count, (index, record)...)...
      returns (index, claim, delay_ms, kind)...
      keys by their place in KEYS; at most 900 records and 900 returns
      kind: how many charged attempts to add, or m: its payload is missing
gives {status, state, version, new, dup, stale, ahead, complete}
      new    records kept; dup: answered before, by whomever; ahead: indices the store does not have (it lost a suffix)
      stale  returns whose claim is not the one that is held
      OK
      ENDED  cancelled or expired: what was held is released, no record is kept
      GONE
A record is first-wins from anyone of this epoch; a return is only taken from the claim that is held. The done bit
dominates: a record takes its index out of waiting, a return of a done index is dropped. A frame is freed with its
record, the pictures with their run's last frame.
crash one script: all or nothing; a replay counts dup and stale and changes nothing else ]]
--@include _over
--@include _past
local BAD_IMAGE, BAD_INPUT = 12, 13
local meta, done, held, waiting, suspects, histories, unacked, failures =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'closed', 'n', 'prod', 'done', 'failed', 'in_flight',
  'payload_bytes', 'results_bytes', 'dup', 'stale', 'proven', 'attempts', 'prompt_tokens', 'completion_tokens',
  'max_failures', 'max_percent', 'done_base', 'failed_base', 'progress_at')
local state, version = m[2] or 'deleting', tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or state == 'deleting' then return {'GONE', 'deleting', version, 0, 0, 0, 0, 0} end
local prod, ndone, failed, in_flight = tonumber(m[6]), tonumber(m[7]), tonumber(m[8]), tonumber(m[9])
local payload_bytes, results_bytes, proven = tonumber(m[10]), tonumber(m[11]), m[14]
local attempts, prompt, completion = tonumber(m[15]), tonumber(m[16]), tonumber(m[17])
local new, dup, stale, ahead, at = 0, 0, 0, 0, 4
local ended = state == 'cancelled' or state == 'expired'

-- every record, flat: its index, where it stands in ARGV, and its group
local groups, index_of, place_of, group_of, bits, count = {}, {}, {}, {}, {}, 0
for g = 1, tonumber(ARGV[3]) do
  local k = tonumber(ARGV[at + 3])
  groups[g] = {block = ARGV[at], block_key = KEYS[tonumber(ARGV[at + 1])], payload = KEYS[tonumber(ARGV[at + 2])]}
  at = at + 4
  for _ = 1, k do
    if tonumber(ARGV[at]) >= prod then
      ahead = ahead + 1
    else
      count = count + 1
      index_of[count], place_of[count], group_of[count] = ARGV[at], at + 1, groups[g]
      local b = 4 * count
      bits[b - 3], bits[b - 2], bits[b - 1], bits[b] = 'SET', 'u1', ARGV[at], '1'
    end
    at = at + 2
  end
end

-- Counts what the record's header says (layout: gristmill.contract.record).
local function tally(index, record)
  local status, code, tries, asked, answered = struct.unpack('>xBBxI4I4I4', record)
  attempts, prompt, completion = attempts + tries, prompt + asked, completion + answered
  if status == 70 then
    failed = failed + 1
    redis.call('HINCRBY', meta, 'class:' .. code, 1)
    redis.call('SETRANGE', failures, index, string.char(code)) -- outlives the record: a retry chooses by it
  end
  if code ~= BAD_IMAGE and code ~= BAD_INPUT then proven = '1' end
end
-- Frees the frames of one group's new records.
local function free(group)
  local bytes = 0
  for _, index in ipairs(group.indices) do
    local length = redis.call('HSTRLEN', group.payload, index)
    if length > 0 then bytes = bytes + length + 100 end
  end
  local gone = redis.call('HDEL', group.payload, unpack(group.indices))
  if gone == 0 then return end
  if redis.call('HINCRBY', group.payload, '#n', -gone) == 0 then
    payload_bytes = payload_bytes - tonumber(redis.call('HGET', group.payload, '#'))
    redis.call('UNLINK', group.payload)
  else
    payload_bytes = payload_bytes - bytes
    redis.call('HINCRBY', group.payload, '#', -bytes)
  end
end
local function keep(group)
  redis.call('HSET', group.block_key, unpack(group.fields))
  redis.call('HINCRBY', group.block_key, '#', group.bytes)
  redis.call('SADD', unacked, group.block)
  results_bytes = results_bytes + group.bytes
  free(group)
end

if count > 0 then
  local mine = redis.call('HDEL', held, unpack(index_of))
  in_flight = in_flight - mine
  if ended then
    dup = count
  else
    local old, fresh = redis.call('BITFIELD', done, unpack(bits)), {}
    for i = 1, count do
      if old[i] == 0 then
        local record, group = ARGV[place_of[i]], group_of[i]
        if not group.fields then group.fields, group.indices, group.bytes = {}, {}, 0 end
        local f = #group.fields
        group.fields[f + 1], group.fields[f + 2] = index_of[i], record
        group.indices[#group.indices + 1] = index_of[i]
        group.bytes = group.bytes + #record + 100
        fresh[#fresh + 1] = index_of[i]
        tally(index_of[i], record)
      end
    end
    new = #fresh
    dup = count - new
    if new > 0 then
      for _, group in ipairs(groups) do
        if group.fields then keep(group) end
      end
      if mine < count then -- one that was not ours may sit in waiting
        redis.call('ZREM', waiting, unpack(fresh))
        redis.call('ZREM', suspects, unpack(fresh))
      end
      if redis.call('EXISTS', histories) == 1 then redis.call('HDEL', histories, unpack(fresh)) end
    end
  end
end

local missing, progress_at, now = 0, m[22] or 0, 0
local nreturns = tonumber(ARGV[at])
if new > 0 or nreturns > 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
  if new > 0 then progress_at = now end
end
if nreturns > 0 then
  for i = 1, nreturns do
    local p = at + 1 + 4 * (i - 1)
    local index, kind = ARGV[p], ARGV[p + 3]
    local value = tonumber(redis.call('HGET', held, index) or 0)
    if math.abs(value) ~= tonumber(ARGV[p + 1]) then
      stale = stale + 1
    else
      redis.call('HDEL', held, index)
      in_flight = in_flight - 1
      if not ended and redis.call('GETBIT', done, index) == 0 then
        redis.call('ZADD', value < 0 and suspects or waiting, now + tonumber(ARGV[p + 2]), index)
        if kind == 'm' then missing = missing + 1 end
        local a, c, cohort, alone, first = past(redis.call('HGET', histories, index))
        redis.call('HSET', histories, index, history(a + (tonumber(kind) or 0), c, cohort, alone, first, value))
      end
    end
  end
end

local function pause(reason, detail)
  state = 'paused'
  redis.call('HSET', meta, 'state', state, 'reason', reason, 'detail', detail)
end
local function over_budget()
  local most, percent = tonumber(m[18]), tonumber(m[19])
  local bad, all = failed - tonumber(m[21]), ndone - tonumber(m[20])
  if most > 0 and bad >= most then return bad .. ' requests have failed, the limit is ' .. most end
  if percent > 0 and all >= 100 and bad * 100 > percent * all then
    return bad .. ' of ' .. all .. ' requests have failed, the limit is ' .. percent .. ' %'
  end
end

ndone, version = ndone + new, version + 1
redis.call('HSET', meta, 'version', version, 'done', ndone, 'failed', failed, 'in_flight', in_flight,
  'payload_bytes', payload_bytes, 'results_bytes', results_bytes, 'proven', proven, 'attempts', attempts,
  'prompt_tokens', prompt, 'completion_tokens', completion, 'dup', tonumber(m[12]) + dup, 'stale', tonumber(m[13]) + stale,
  'progress_at', progress_at)
state = over(meta, done, state, m[4], tonumber(m[5] or 0), ndone, in_flight)
if missing > 0 then
  redis.call('HINCRBY', meta, 'missing', missing)
  if state == 'running' then pause('store', missing .. ' claimed requests had no payload in the store') end
end
if new > 0 and state == 'running' then
  local detail = over_budget()
  if detail then pause('budget', detail) end
end
return {ended and 'ENDED' or 'OK', state, version, new, dup, stale, ahead, state == 'complete' and 1 or 0}
