-- Begins or ends the restore of a backup. In between the cluster has a format of its own, so that no node joins it.
--
-- KEYS: the cluster.
-- ARGV: begin or end, the format of a restore that has not ended, the format, the cluster's id; of a begin: its number
--       of shards, its secret, version of placement. Gives 'OK', 'AGAIN' if an earlier restore has not ended, 'THERE'
--       and the number of shards if there is a store, or 'OTHER' if another restore has begun.
local of = redis.call('HMGET', KEYS[1], 'format', 'id', 'shards')
if ARGV[1] == 'begin' then
  if of[1] and of[1] ~= ARGV[2] then
    return 'THERE ' .. (of[3] or '?')
  end
  redis.call('HSET', KEYS[1], 'format', ARGV[2], 'id', ARGV[4], 'shards', ARGV[5], 'secret', ARGV[6], 'placement',
    ARGV[7])
  return of[1] and 'AGAIN' or 'OK'
end
if of[2] ~= ARGV[4] or (of[1] ~= ARGV[2] and of[1] ~= ARGV[3]) then
  return 'OTHER'
end
redis.call('HSET', KEYS[1], 'format', ARGV[3], 'made', '1')
return 'OK'
