-- The beginning of each script of an owner: whether the caller still owns the shard, and how many replicas follow closely.
--
-- KEYS: the shard's owner, its head.
-- ARGV: epoch, incarnation, replication id of the master it was acquired on.
local owner = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'until')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then
  return 'FENCED the shard has another owner'
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if tonumber(owner[3]) <= now then
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
local replicas = 0
for lag in string.gmatch(info, 'state=online,offset=%d+,lag=(%d+)') do
  if tonumber(lag) <= 2 then
    replicas = replicas + 1
  end
end
