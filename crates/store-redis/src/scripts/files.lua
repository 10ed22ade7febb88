-- Names and removes files, if the caller still owns the shard. Gives 'OK' and how many replicas follow closely, 'NONE' if there is no
-- such name, or why not.
--
-- KEYS: the shard's owner, its head, its files, the numbers of their blocks.
-- ARGV: as fence.lua; what a block's key begins with; 'name', the name, the file, its length; or 'remove', the name; or 'discard', the file;
--       or 'recover': the files of earlier owners without a name are removed, and 'LOST' and a name is given if a block of it is not there.
local function unlink(file)
  local blocks = tonumber(redis.call('HGET', KEYS[4], file) or '0')
  for first = 0, blocks - 1, 1000 do
    local keys = {}
    for block = first, math.min(first + 999, blocks - 1) do
      keys[#keys + 1] = ARGV[4] .. file .. ':' .. block
    end
    redis.call('UNLINK', unpack(keys))
  end
  redis.call('HDEL', KEYS[4], file)
end

local function file_of(entry)
  return string.match(entry, '^(%d+) ')
end

if ARGV[5] == 'name' then
  local old = redis.call('HGET', KEYS[3], ARGV[6])
  redis.call('HSET', KEYS[3], ARGV[6], ARGV[7] .. ' ' .. ARGV[8])
  if old and file_of(old) ~= ARGV[7] then
    unlink(file_of(old))
  end
elseif ARGV[5] == 'remove' then
  local old = redis.call('HGET', KEYS[3], ARGV[6])
  if not old then
    return 'NONE'
  end
  redis.call('HDEL', KEYS[3], ARGV[6])
  unlink(file_of(old))
elseif ARGV[5] == 'discard' then
  unlink(ARGV[6])
else
  local named, files = {}, redis.call('HGETALL', KEYS[3])
  for i = 1, #files, 2 do
    local file = file_of(files[i + 1])
    named[file] = true
    local blocks = tonumber(redis.call('HGET', KEYS[4], file) or '0')
    for block = 0, blocks - 1 do
      if redis.call('EXISTS', ARGV[4] .. file .. ':' .. block) == 0 then
        return 'LOST ' .. files[i]
      end
    end
  end
  for _, file in ipairs(redis.call('HKEYS', KEYS[4])) do
    if not named[file] then
      unlink(file)
    end
  end
end
return 'OK ' .. replicas
