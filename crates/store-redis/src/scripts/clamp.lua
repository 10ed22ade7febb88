-- Ends a lease that would run for longer than a whole lease from now: it was given before a backward step of the clock.
--
-- KEYS: the shard's owner.
local owner = redis.call('HMGET', KEYS[1], 'until', 'lease')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local longest = now + tonumber(owner[2] or '0')
if tonumber(owner[1] or '0') > longest then
  redis.call('HSET', KEYS[1], 'until', string.format('%.0f', longest))
end
