-- Takes a shard, if nobody's lease of it runs.
--
-- KEYS: the shard's owner, its head.
-- ARGV: new incarnation, node, number, advertise, length of the lease in ms, greatest epoch known to the caller, format,
--       an incarnation of the caller's own process that has ended ('' if none), seconds from 1970 to the first epoch,
--       how many ids are set aside at a time, how many belong to each second,
--       the cluster's id ('' if none is known), its number of shards, version of placement, 'new' if the shard may be
-- made ('' if not). Gives {'OK', epoch, replication id, replicas that follow, the first id that may be given,
-- ms since an owner's clocks were written last ('' if never), microseconds since the first epoch}, {'EMPTY'}, {'OTHER', cluster, shards, placement}, {'HELD', node, ms left, incarnation}, {'FORMAT', the stored one} or {'MOVING', why}.
-- While the slot moves, keys that are not there (any more) cannot be touched, so files cannot be read. This key is
-- never there.
local touched = redis.pcall('HLEN', KEYS[1] .. ':none')
if type(touched) == 'table' then
  return { 'MOVING', touched.err }
end
local format = redis.call('HGET', KEYS[2], 'format')
if format and format ~= ARGV[7] then
  return { 'FORMAT', format }
end
if not format and (ARGV[15] == '' or tonumber(ARGV[6]) > 0) then
  return { 'EMPTY' }
end
local of = redis.call('HMGET', KEYS[2], 'cluster', 'shards', 'placement')
if format and ARGV[12] ~= '' and (of[1] ~= ARGV[12] or of[2] ~= ARGV[13] or of[3] ~= ARGV[14]) then
  return { 'OTHER', of[1], of[2], of[3] }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = tonumber(ARGV[5])
local info = redis.call('INFO', 'replication')
local replid = string.match(info, 'master_replid:(%x+)')
local owner = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'until', 'node', 'replid', 'lease')
local ends = tonumber(owner[3] or '0')
if ends ~= 0 and owner[2] ~= ARGV[8] then
  local longest = now + owner[6]
  if owner[5] ~= replid or ends > longest then
    -- A promotion or a restart may have lost renewals, so the lease may run for longer than is known here. And after a
    -- backward step of the clock it would end much later than it does. It runs for a whole lease from now on at most.
    ends = longest
    redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends), 'replid', replid)
  end
  if ends > now then
    return { 'HELD', owner[4], string.format('%.0f', ends - now), owner[2] }
  end
end
-- Seconds, so that a state that was set back gives no earlier epoch. The same one it may give within a second: tokens and ids go by
-- microseconds.
local epoch = math.max(tonumber(owner[1] or '0') + 1, tonumber(ARGV[6]) + 1, time[1] - ARGV[9])
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'epoch', epoch, 'incarnation', ARGV[1], 'node', ARGV[2], 'number', ARGV[3],
  'advertise', ARGV[4], 'until', string.format('%.0f', now + lease), 'replid', replid, 'lease', ARGV[5])
if not format then
  redis.call('HSET', KEYS[2], 'format', ARGV[7], 'journal', '0', 'cluster', ARGV[12], 'shards', ARGV[13],
    'placement', ARGV[14])
end
-- Those that follow closely. One that is still being filled is filled with this, too; one that has not been heard of for seconds may be
-- dead, and must not keep everybody from the shard.
local replicas = 0
for lag in string.gmatch(info, 'state=online,offset=%d+,lag=(%d+)') do
  if tonumber(lag) <= 2 then
    replicas = replicas + 1
  end
end
-- After a clean end, if nothing can have been lost since, ids go on where they were. Else they go on where the time says, to the
-- microsecond: no reign can have given as many before, not even one that is lost and that began from the same state a moment ago. Ids are
-- set aside before they are given, for a clock that has gone back: when even the first of those last set aside is ahead of the time, they
-- go on behind all of these.
local mark = redis.call('HGET', KEYS[2], 'ids') or '1'
local first = tonumber(mark)
local micros = (time[1] - ARGV[9]) * 1000000 + time[2]
local clean, at = string.match(redis.call('HGET', KEYS[2], 'clean') or '', '^(%d+)@(%x+)$')
redis.call('HDEL', KEYS[2], 'clean')
if clean and at == replid then
  first = tonumber(clean)
elseif mark ~= '1' then
  local by_time = math.floor(micros / 1000000 * ARGV[11])
  if first - ARGV[10] <= by_time then
    first = by_time
  end
end
local aside = math.max(tonumber(mark), first + ARGV[10])
redis.call('HSET', KEYS[2], 'ids', string.format('%.0f', aside))
first = string.format('%.0f', first)
local noted = redis.call('HGET', KEYS[2], 'at')
local since = noted and string.format('%.0f', math.max(0, now - tonumber(noted))) or ''
return { 'OK', epoch, replid, tostring(replicas), first, since, string.format('%.0f', micros) }
