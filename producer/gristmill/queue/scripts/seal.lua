#!lua
--[[ Takes one staged payload run into the job. The bytes were written before by plain HSETs: nothing of them passes here.
The only script that the store may refuse at its memory limit: what drains must always run.
KEYS  meta stage payload runs
ARGV  epoch token run first count bytes fields cursor
      bytes: sum of the lengths of the staged values; fields: how many were staged (frames and pictures)
gives {status, state, version, sealed_runs, payload_bytes, payload_mark, cursor}   cursor: of the last sealed run
      OK         sealed; the stage has become the payload
      DUP        sealed before (a lost reply, or a restarted feeder)
      GAP        does not follow what is here: the store lost a suffix, rewind to the cursor
      FULL       above the payload mark: the stage is kept (its time to live renewed), retry only this call
      TORN       the stage is incomplete or gone: stage again
      LOST       the token does not hold the feeder's lease
      CLOSED CANCELLED GONE
      every status but FULL and OK drops the stage
crash before: the stage expires; after: the run stands, a replay says DUP ]]
local meta, stage, payload, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local run, first, count = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'closed', 'sealed_runs', 'prod', 'payload_bytes',
  'payload_mark', 'feeder_token', 'cursor')
local state, version = m[2] or 'deleting', tonumber(m[3] or 0)
local sealed, prod, held, mark = tonumber(m[5] or 0), tonumber(m[6] or 0), tonumber(m[7] or 0), tonumber(m[8] or 0)
local fields = tonumber(ARGV[7])
local bytes = tonumber(ARGV[6]) + 100 * fields
local status
if m[1] ~= ARGV[1] or state == 'deleting' then status = 'GONE'
elseif state == 'cancelling' or state == 'cancelled' or state == 'expired' then status = 'CANCELLED'
elseif m[9] ~= ARGV[2] then status = 'LOST'
elseif run < sealed then status = 'DUP'
elseif m[4] == '1' then status = 'CLOSED'
elseif run > sealed or first ~= prod then status = 'GAP'
elseif redis.call('HLEN', stage) ~= fields or redis.call('HEXISTS', stage, first) == 0
  or redis.call('HEXISTS', stage, first + count - 1) == 0 then status = 'TORN'
elseif held > 0 and held + bytes > mark then status = 'FULL' end
if status == 'FULL' then
  redis.call('EXPIRE', stage, 600)
elseif status then
  redis.call('UNLINK', stage)
end
if status then return {status, state, version, sealed, held, mark, m[10] or ''} end
redis.call('RENAME', stage, payload)
redis.call('PERSIST', payload)
redis.call('HSET', payload, '#', bytes, '#n', count)
redis.call('ZADD', runs, first, run .. ',' .. math.ceil(bytes / count))
redis.call('HSET', meta, 'version', version + 1, 'sealed_runs', sealed + 1, 'prod', prod + count,
  'payload_bytes', held + bytes, 'cursor', ARGV[8])
return {'OK', state, version + 1, sealed + 1, held + bytes, mark, ARGV[8]}
