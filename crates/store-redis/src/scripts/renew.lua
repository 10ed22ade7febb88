-- Renews a lease that still runs, or gives it back.
--
-- KEYS: the shard's owner.
-- ARGV: epoch, incarnation, replication id, length of the lease in ms (0 gives it back).
local owner = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'until')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then
  return 'FENCED the shard has another owner'
end
if ARGV[4] == '0' then
  redis.call('HSET', KEYS[1], 'until', '0')
  return 'OK'
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if tonumber(owner[3]) <= now then
  return 'FENCED the lease has run out'
end
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[3] then
  return 'FENCED this master has been promoted, restarted or got its first replica since the shard was acquired'
end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[4]))
return 'OK'
