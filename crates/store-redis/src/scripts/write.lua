-- Writes pieces of a file, if the caller still owns the shard. Gives 'OK' and how many replicas follow closely, or why not.
--
-- KEYS: the shard's owner, its head, the numbers of its blocks, then the blocks that are written.
-- ARGV: as fence.lua; the number of the last write to the journal that the head must have ('' for another file), the mark of ids that
--       the head gets ('' if none), '1' if a write to the journal has the owner's own clocks ('' if those of an earlier
--       one), the file, how many blocks it has then, the bytes of a full block (0 for the journal); then for each
--       piece: the index of its block's key, the offset in the block, the bytes.
if ARGV[4] ~= '' then
  local last = redis.call('HGET', KEYS[2], 'journal') or '0'
  if last ~= ARGV[4] then
    return 'GAP the journal is at write ' .. last .. ', not at ' .. ARGV[4]
  end
  redis.call('HSET', KEYS[2], 'journal', string.format('%.0f', last + 1))
  redis.call(ARGV[6] == '' and 'HSETNX' or 'HSET', KEYS[2], 'at', string.format('%.0f', now))
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'ids', ARGV[5])
end
if tonumber(ARGV[8]) > tonumber(redis.call('HGET', KEYS[3], ARGV[7]) or '0') then
  redis.call('HSET', KEYS[3], ARGV[7], ARGV[8])
end
local full = tonumber(ARGV[9])
for i = 10, #ARGV, 3 do
  local key, from, bytes = KEYS[tonumber(ARGV[i])], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if from + #bytes == full and redis.call('STRLEN', key) == from then
    -- A string that SETRANGE makes longer takes up to twice its bytes; one that SET makes takes its bytes.
    redis.call('SET', key, (from > 0 and redis.call('GETRANGE', key, 0, from - 1) or '') .. bytes)
  else
    redis.call('SETRANGE', key, ARGV[i + 1], bytes)
  end
end
return 'OK ' .. replicas
