-- Replaces the secret by which nodes know each other. The former one counts beside it until the rotation ends.
--
-- KEYS: the cluster.
-- ARGV: begin or end; format; the new secret (of a begin). Gives {'OK', lease in ms}, {'BEGUN', lease in ms} of a
-- rotation that has begun before and not ended, {'FORMAT', the stored one} or {'EMPTY'}.
local format = redis.call('HGET', KEYS[1], 'format')
if not format then
  return { 'EMPTY' }
end
if format ~= ARGV[2] then
  return { 'FORMAT', format }
end
local stored = redis.call('HMGET', KEYS[1], 'secret', 'former_secret', 'lease')
if ARGV[1] == 'end' then
  redis.call('HDEL', KEYS[1], 'former_secret')
  return { 'OK', stored[3] or '' }
end
if stored[2] then
  return { 'BEGUN', stored[3] or '' }
end
redis.call('HSET', KEYS[1], 'secret', ARGV[3], 'former_secret', stored[1])
return { 'OK', stored[3] or '' }
