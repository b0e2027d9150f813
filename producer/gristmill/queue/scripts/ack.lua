#!lua flags=allow-oom
--[[ Frees records that the collector has made durable: any of them, in any order.
KEYS  meta acked done unacked block...
ARGV  epoch token (block, count, index...)...   in the order of KEYS
gives {status, version, acked, unknown}
      acked    records freed now
      unknown  indices that are not done here: the store lost a suffix, and they will be done again
      OK
      LOST   the token does not hold the collector's lease: nothing is freed
      GONE
crash one script; a replay frees nothing ]]
local meta, acked, done, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', 'collector_token', 'results_bytes', 'acked')
local version = tonumber(m[3] or 0)
if m[1] ~= ARGV[1] or m[2] == 'deleting' then return {'GONE', version, 0, 0} end
if m[4] ~= ARGV[2] then return {'LOST', version, 0, 0} end
local freed, nacked, unknown, at = 0, 0, 0, 3
for k = 5, #KEYS do
  local block, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  local mine, bits, bytes = {}, {}, 0
  for i = at + 2, last do
    local index = ARGV[i]
    local length = redis.call('HSTRLEN', KEYS[k], index)
    if length > 0 then
      mine[#mine + 1] = index
      bytes = bytes + length + 100
      local b = #bits
      bits[b + 1], bits[b + 2], bits[b + 3], bits[b + 4] = 'SET', 'u1', index, '1'
      if b + 4 == 4000 then
        redis.call('BITFIELD', acked, unpack(bits))
        bits = {}
      end
    elseif redis.call('GETBIT', done, index) == 0 then
      unknown = unknown + 1
    end
  end
  at = last + 1
  if #mine > 0 then
    if #bits > 0 then redis.call('BITFIELD', acked, unpack(bits)) end
    local gone = redis.call('HDEL', KEYS[k], unpack(mine))
    nacked, freed = nacked + gone, freed + bytes
    if redis.call('HLEN', KEYS[k]) == 1 then
      redis.call('UNLINK', KEYS[k])
      redis.call('SREM', unacked, block)
    else
      redis.call('HINCRBY', KEYS[k], '#', -bytes)
    end
  end
end
if nacked > 0 then
  version = version + 1
  redis.call('HSET', meta, 'version', version, 'results_bytes', tonumber(m[5]) - freed, 'acked', tonumber(m[6]) + nacked)
end
return {'OK', version, nacked, unknown}
