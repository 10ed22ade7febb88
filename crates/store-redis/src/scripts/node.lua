-- A node joins, says that it is alive, or leaves.
--
-- KEYS: the cluster, its nodes.
-- ARGV: join, beat or leave; the node's name, number (of a beat and a leave) and advertise; for how long it counts as alive, in ms;
--       format; of a join: how many shards a new cluster gets, its secret, seconds from 1970 to the first number.
-- Gives {'OK', ...}, {'HELD', ms left}, {'FENCED'} or {'FORMAT', the stored one}. A node is stored as: number, end of life, advertise.
local format = redis.call('HGET', KEYS[1], 'format')
if format and format ~= ARGV[6] then
  return { 'FORMAT', format }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function read(node)
  local number, ends, advertise = string.match(node or '', '^(%d+) (%d+) (.*)$')
  return tonumber(number or '0'), tonumber(ends or '0'), advertise
end
local function write(number)
  redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f %.0f %s', number, now + ARGV[5], ARGV[4]))
end
local number, ends = read(redis.call('HGET', KEYS[2], ARGV[2]))

if ARGV[1] == 'join' then
  if ends > now then
    return { 'HELD', string.format('%.0f', ends - now) }
  end
  if not format then
    redis.call('HSET', KEYS[1], 'format', ARGV[6], 'shards', ARGV[7], 'secret', ARGV[8])
  end
  local stored = redis.call('HMGET', KEYS[1], 'number', 'shards', 'secret')
  -- Seconds, so that a state that was set back gives no number a second time.
  local new = math.max(tonumber(stored[1] or '0') + 1, number + 1, time[1] - ARGV[9])
  redis.call('HSET', KEYS[1], 'number', string.format('%.0f', new))
  write(new)
  return { 'OK', string.format('%.0f', new), stored[2], stored[3] }
end

local own = tonumber(ARGV[3])
if ARGV[1] == 'leave' then
  if number == own then
    redis.call('HDEL', KEYS[2], ARGV[2])
  end
  return { 'OK' }
end

if number > own then
  return { 'FENCED' }
end
write(own)
if tonumber(redis.call('HGET', KEYS[1], 'number') or '0') < own then
  redis.call('HSET', KEYS[1], 'number', ARGV[3])
end
local alive = { 'OK' }
local nodes = redis.call('HGETALL', KEYS[2])
for i = 1, #nodes, 2 do
  local of, till, advertise = read(nodes[i + 1])
  if till > now then
    alive[#alive + 1] = nodes[i]
    alive[#alive + 1] = string.format('%.0f', of)
    alive[#alive + 1] = advertise
  elseif till + 100 * ARGV[5] < now then
    redis.call('HDEL', KEYS[2], nodes[i])
  end
end
return alive
