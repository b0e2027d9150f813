#!lua flags=allow-oom
--[[ The lease of the one feeder, collector or notifier of a job: take, renew or release it.
KEYS  meta
ARGV  epoch role(feeder|collector|notifier) op(take|renew|release) token holder ttl_ms force(0|1)
gives {status, version, granted(0|1), holder, expires_in_ms}   of whoever holds it afterwards
      OK GONE
A lease that has run out still belongs to its token until another takes it: who comes back in time goes on.
After a release the holder's name stays, so that a feeder that left without closing can be told from none at all.
crash the lease runs out after its ttl ]]
local meta, role, op, token = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local f_token, f_holder, f_until = role .. '_token', role .. '_holder', role .. '_until'
local m = redis.call('HMGET', meta, 'epoch', 'state', 'version', f_token, f_holder, f_until)
if m[1] ~= ARGV[1] or m[2] == 'deleting' then return {'GONE', tonumber(m[3] or 0), 0, '', 0} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local owner, holder, deadline, version = m[4], m[5] or '', tonumber(m[6] or 0), tonumber(m[3])
local granted = owner == token
if op == 'take' and (not owner or deadline <= now or ARGV[7] == '1') then granted = true end
if granted then
  if op == 'release' then
    redis.call('HDEL', meta, f_token, f_until)
    deadline = 0
  else
    deadline = now + tonumber(ARGV[6])
    if op == 'take' then holder = ARGV[5] end
    redis.call('HSET', meta, f_token, token, f_holder, holder, f_until, deadline)
  end
  if op ~= 'renew' then version = redis.call('HINCRBY', meta, 'version', 1) end
end
return {'OK', version, granted and 1 or 0, holder, math.max(deadline - now, 0)}
