-- Removes what a restore that has not ended has left of a shard. What is known of its owners stays, so that no epoch is
-- given again.
--
-- KEYS: the shard's owner, its head, its files, the numbers of their blocks.
-- ARGV: look to remove nothing, or wipe; what a block's key begins with. Gives 'OK', or 'FENCED' and why not.
local owner = redis.call('HMGET', KEYS[1], 'until', 'node')
local time = redis.call('TIME')
local left = tonumber(owner[1] or '0') - (time[1] * 1000 + math.floor(time[2] / 1000))
if left > 0 then
  return 'FENCED another process restores the store, or did until a moment ago: its lease of ' .. KEYS[1] .. ' runs for '
    .. string.format('%.0f', left) .. ' ms'
end
if ARGV[1] == 'look' then
  return 'OK'
end
local files = redis.call('HGETALL', KEYS[4])
for i = 1, #files, 2 do
  for first = 0, tonumber(files[i + 1]) - 1, 1000 do
    local keys = {}
    for block = first, math.min(first + 999, tonumber(files[i + 1]) - 1) do
      keys[#keys + 1] = ARGV[2] .. files[i] .. ':' .. block
    end
    redis.call('UNLINK', unpack(keys))
  end
end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
return 'OK'
