-- Whether a job is over, decided here and nowhere else (seal cannot end a job, since only a closed one can be complete).
-- The count of done indices only says when to look: what decides is the number of bits.
-- over(meta, done, state, closed, n, ndone, in_flight) -> the state; a new one has been written.
local function over(meta, done, state, closed, n, ndone, in_flight)
  local to = state
  if state == 'running' or state == 'paused' or state == 'cancelling' then
    if closed == '1' and ndone >= n and redis.call('BITCOUNT', done) >= n then
      to = 'complete'
    elseif state == 'cancelling' and in_flight == 0 then
      to = 'cancelled'
    end
  end
  if to ~= state then
    local t = redis.call('TIME')
    redis.call('HSET', meta, 'state', to, 'finished_at', t[1] * 1000 + math.floor(t[2] / 1000))
  end
  return to
end
