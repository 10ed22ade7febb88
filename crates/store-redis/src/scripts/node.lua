-- A node joins, says that it is alive, or leaves.
--
-- KEYS: the cluster, its nodes.
-- ARGV: join, beat or leave; the node's name, number (of a beat and a leave) and advertise; for how long it counts as alive, in ms;
--       format; seconds from 1970 to the first number; the cluster's id, number of shards, secret and version of
-- placement (of a join: those that a new cluster gets); 'new' if a cluster may be made ('' if not); '1' if all shards
-- have been made ('' if that is not known); of a join: how long a node must stay before it gets shards, in ms. Gives
-- {'OK', ...}, {'HELD', ms left}, {'FENCED'}, {'FORMAT', the stored one}, {'EMPTY'}, {'OTHER', id, placement},
-- {'LEASE', ms} or {'SETTLE', ms}. A node is stored as: number, end of life, advertise.
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
-- The nodes that live, but for this one. After a backward step of the clock an end of life would be much later than it
-- is.
local function living()
  local alive = {}
  local nodes = redis.call('HGETALL', KEYS[2])
  for i = 1, #nodes, 2 do
    local of, till, advertise = read(nodes[i + 1])
    if till > now + ARGV[5] then
      till = now + ARGV[5]
      redis.call('HSET', KEYS[2], nodes[i], string.format('%.0f %.0f %s', of, till, advertise))
    end
    if till > now then
      alive[#alive + 1] = nodes[i]
      alive[#alive + 1] = string.format('%.0f', of)
      alive[#alive + 1] = advertise
    elseif till + 100 * ARGV[5] < now then
      redis.call('HDEL', KEYS[2], nodes[i])
    end
  end
  return alive
end
local number, ends, address = read(redis.call('HGET', KEYS[2], ARGV[2]))
-- What all nodes have to agree about.
local of = redis.call('HMGET', KEYS[1], 'id', 'placement')
local function make()
  redis.call('HSET', KEYS[1], 'format', ARGV[6], 'id', ARGV[8], 'shards', ARGV[9], 'secret', ARGV[10], 'placement', ARGV[11],
    'lease', ARGV[5])
end

if ARGV[1] == 'join' then
  if not format and ARGV[12] == '' then
    return { 'EMPTY' }
  end
  if format and of[2] ~= ARGV[11] then
    return { 'OTHER', of[1], of[2] }
  end
  if ends > now then
    ends = math.min(ends, now + ARGV[5])
    redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f %.0f %s', number, ends, address))
    return { 'HELD', string.format('%.0f', ends - now) }
  end
  local said = redis.call('HMGET', KEYS[1], 'lease', 'settle')
  if said[1] and said[1] ~= ARGV[5] and #living() > 0 then
    return { 'LEASE', said[1] }
  end
  if said[2] and said[2] ~= ARGV[14] and #living() > 0 then
    return { 'SETTLE', said[2] }
  end
  if not format then
    make()
  else
    redis.call('HSET', KEYS[1], 'lease', ARGV[5])
  end
  redis.call('HSET', KEYS[1], 'settle', ARGV[14])
  local stored = redis.call('HMGET', KEYS[1], 'number', 'shards', 'secret', 'id', 'made')
  -- Seconds, so that a state that was set back gives no number a second time.
  local new = math.max(tonumber(stored[1] or '0') + 1, number + 1, time[1] - ARGV[7])
  redis.call('HSET', KEYS[1], 'number', string.format('%.0f', new))
  write(new)
  return { 'OK', string.format('%.0f', new), stored[2], stored[3], stored[4], stored[5] or '' }
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
if ARGV[8] ~= '' then
  if not format then
    -- Lost by a failover, or with everything else. The shards say which.
    make()
  elseif of[1] ~= ARGV[8] or of[2] ~= ARGV[11] then
    return { 'OTHER', of[1], of[2] }
  end
  if ARGV[13] ~= '' then
    redis.call('HSET', KEYS[1], 'made', ARGV[13])
  end
end
write(own)
if tonumber(redis.call('HGET', KEYS[1], 'number') or '0') < own then
  redis.call('HSET', KEYS[1], 'number', ARGV[3])
end
local alive = living()
table.insert(alive, 1, 'OK')
return alive
