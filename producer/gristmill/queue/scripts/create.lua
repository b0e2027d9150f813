#!lua flags=allow-oom
--[[ Makes a job, whole or not at all.
KEYS  meta spec
ARGV  epoch manifest (field value)...
      the fields are the job's hash besides those set here
gives {status, version}
      OK      it stands (also when this very incarnation stood before: the reply of the first call was lost)
      EXISTS  another job has this id
crash nothing half made: one script ]]
local meta, spec = KEYS[1], KEYS[2]
local seen = redis.call('HMGET', meta, 'epoch', 'version')
if seen[1] then
  if seen[1] == ARGV[1] then return {'OK', tonumber(seen[2])} end
  return {'EXISTS', tonumber(seen[2] or 0)}
end
local t = redis.call('TIME')
redis.call('SET', spec, ARGV[2])
redis.call('HSET', meta, 'epoch', ARGV[1], 'version', 1, 'state', 'running', 'closed', '0',
  'created_at', t[1] * 1000 + math.floor(t[2] / 1000), unpack(ARGV, 3))
return {'OK', 1}
