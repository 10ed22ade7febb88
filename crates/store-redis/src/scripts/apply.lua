-- Applies a group, if the caller still owns the shard. Gives 'OK' and how many replicas follow closely, or why not.
--
-- KEYS: the shard's owner, its head.
-- ARGV: epoch, incarnation, replication id of the master it was acquired on,
--       the LSN that the head must have ('' if any), the LSN that it gets ('' if none), engine clock, wall clock ('' if none),
--       then commands: each the number of its words, and the words.
--
-- Words that begin with @ are not Redis' own. Of messages they know this much: the key is a word of the message's first line, and
-- the life of a dead one begins with its place in the sets of the dead.
local owner = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'until')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then
  return 'FENCED the shard has another owner'
end
local time = redis.call('TIME')
if tonumber(owner[3]) <= time[1] * 1000 + math.floor(time[2] / 1000) then
  return 'FENCED the lease has run out'
end
local info = redis.call('INFO', 'replication')
if string.match(info, 'master_replid:(%x+)') ~= ARGV[3] then
  return 'FENCED this master has been promoted, restarted or got its first replica since the shard was acquired'
end
-- While the slot moves, a key that is not there (any more) cannot be touched: an error in the midst of the commands
-- would leave a part of them. This key is never there, so it cannot be touched if any other may not be.
local touched = redis.pcall('HLEN', KEYS[1] .. ':none')
if type(touched) == 'table' then
  return 'MOVING the slot of ' .. KEYS[1] .. ' is moving to another master, or its keys cannot be touched: ' .. touched.err
end
if ARGV[4] ~= '' then
  local lsn = redis.call('HGET', KEYS[2], 'lsn') or '0'
  if lsn ~= ARGV[4] then
    return 'GAP the shard is at ' .. lsn .. ', not at ' .. ARGV[4]
  end
end

-- The words of a message's first line hold its key.
local function key_of(message)
  return message and string.match(message, '^[^\n]* key=([^ \n]*)')
end

-- Words: messages, lives, keys, dead keys, the dead, then ids and the same as members say them.
-- `was` and `is` are 'live', 'dead' or 'gone'.
local function move(from, to, was, is)
  local ids, members = {}, {}
  for i = from + 6, to, 2 do
    ids[#ids + 1] = ARGV[i]
    members[#members + 1] = ARGV[i + 1]
  end
  local messages = redis.call('HMGET', ARGV[from + 1], unpack(ids))
  local lives = was == 'dead' and redis.call('HMGET', ARGV[from + 2], unpack(ids))
  for i, id in ipairs(ids) do
    local key = key_of(messages[i])
    if lives then
      local since = string.match(lives[i] or '', '^dead=(%w+)')
      if since then
        redis.call('ZREM', ARGV[from + 5], since .. ':' .. members[i])
      end
      if key then
        redis.call('ZREM', ARGV[from + 4], key .. ' ' .. members[i])
      end
    elseif key and redis.call('HGET', ARGV[from + 3], key) == id then
      redis.call('HDEL', ARGV[from + 3], key)
    end
    if key and is == 'live' then
      redis.call('HSET', ARGV[from + 3], key, id)
    elseif key and is == 'dead' then
      redis.call('ZADD', ARGV[from + 4], 0, key .. ' ' .. members[i])
    end
  end
end

local special = {
  -- A message that was not dead is no more.
  ['@gone'] = function(from, to) move(from, to, 'live', 'gone') end,
  -- A dead message is no more.
  ['@rots'] = function(from, to) move(from, to, 'dead', 'gone') end,
  -- A message dies.
  ['@dies'] = function(from, to) move(from, to, 'live', 'dead') end,
  -- A dead message lives.
  ['@rises'] = function(from, to) move(from, to, 'dead', 'live') end,
  -- A dead message stays dead.
  ['@turns'] = function(from, to) move(from, to, 'dead', 'dead') end,
  -- Messages are not due any more when they were, or are no more.
  -- Words: the queue's single ones, its spans, how many live in each, what a list's key begins with, the queue, then starts of spans and members.
  ['@away'] = function(from, to)
    local starts, members = {}, {}
    for i = from + 6, to, 2 do
      starts[#starts + 1] = ARGV[i]
      members[#members + 1] = ARGV[i + 1]
    end
    local single, lefts = {}, {}
    for i, score in ipairs(redis.call('ZMSCORE', ARGV[from + 1], unpack(members))) do
      if score then
        single[#single + 1] = members[i]
      else
        lefts[starts[i]] = (lefts[starts[i]] or 0) + 1
      end
    end
    if #single > 0 then
      redis.call('ZREM', ARGV[from + 1], unpack(single))
    end
    for start, left in pairs(lefts) do
      if redis.call('HINCRBY', ARGV[from + 3], start, -left) <= 0 then
        redis.call('UNLINK', ARGV[from + 4] .. start .. ':' .. ARGV[from + 5])
        redis.call('HDEL', ARGV[from + 3], start)
        redis.call('ZREM', ARGV[from + 2], start)
      end
    end
  end,
  -- Several messages are due in one span. Words: the queue's single ones, its spans, how many live in each, the list, start of the span,
  -- how many make a new list, then places.
  -- The list begins with a stamp, so that who has read a part of it knows when it is another.
  ['@come'] = function(from, to)
    local list, start = ARGV[from + 4], ARGV[from + 5]
    local first, many = from + 7, to - from - 6
    local length = redis.call('LLEN', list)
    -- A list of which nearly all has gone gets no longer: what comes and goes all the time would fill it.
    local gone = length > 1000 and length > 1000 + 4 * (redis.call('HGET', ARGV[from + 3], start) or 0)
    if gone or length == 0 and many < tonumber(ARGV[from + 6]) then
      for i = first, to do
        local score, member = string.match(ARGV[i], '^%a(%d+):(%w+)$')
        redis.call('ZADD', ARGV[from + 1], score, member)
      end
      return
    end
    if length == 0 then
      redis.call('RPUSH', list, '#' .. ARGV[5])
      redis.call('ZADD', ARGV[from + 2], start, start)
    end
    redis.call('RPUSH', list, unpack(ARGV, first, to))
    redis.call('HINCRBY', ARGV[from + 3], start, many)
  end,
  -- Words: answers, their ends, engine clock, at most so many.
  ['@forget'] = function(from)
    local over = redis.call('ZRANGEBYSCORE', ARGV[from + 2], '-inf', ARGV[from + 3], 'LIMIT', 0, ARGV[from + 4])
    if #over > 0 then
      redis.call('HDEL', ARGV[from + 1], unpack(over))
      redis.call('ZREM', ARGV[from + 2], unpack(over))
    end
  end,
  -- Words: hash, field, value: deletes the field if it has this value.
  ['@unset'] = function(from)
    if redis.call('HGET', ARGV[from + 1], ARGV[from + 2]) == ARGV[from + 3] then
      redis.call('HDEL', ARGV[from + 1], ARGV[from + 2])
    end
  end,
}

local i, last = 8, #ARGV
while i <= last do
  local from, to = i + 1, i + ARGV[i]
  local command = special[ARGV[from]]
  if command then
    command(from, to)
  else
    redis.call(unpack(ARGV, from, to))
  end
  i = to + 1
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'lsn', ARGV[5])
end
if ARGV[6] ~= '' then
  local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', KEYS[2], 'engine', ARGV[6], 'wall', ARGV[7], 'at', at)
end
local replicas = 0
for lag in string.gmatch(info, 'state=online,offset=%d+,lag=(%d+)') do
  if tonumber(lag) <= 2 then
    replicas = replicas + 1
  end
end
return 'OK ' .. replicas
