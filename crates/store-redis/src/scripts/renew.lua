-- Renews a lease that still runs, or gives it back.
--
-- KEYS: the shard's owner, its head.
-- ARGV: epoch ('' to give back one that is not known), incarnation, replication id, length of the lease in ms (0 gives it back), where ids
--       continue after an orderly end ('' else).
local owner = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'until')
if (ARGV[1] ~= '' and owner[1] ~= ARGV[1]) or owner[2] ~= ARGV[2] then
  return 'FENCED the shard has another owner'
end
if ARGV[4] == '0' then
  redis.call('HSET', KEYS[1], 'until', '0')
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[2], 'clean', ARGV[5] .. '@' .. ARGV[3])
  end
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
