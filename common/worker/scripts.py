"""Scripts of the worker, run inside Redis. Time is the server's own, so workers' clocks do not matter."""

from __future__ import annotations

from common.queues.scripts import PLAIN

#: KEYS: intermediate list, job, started registry, execution, executions of the job, executions of the worker.
#: ARGV: job id, execution id, lease, start as rq writes times, worker, queue.
#: Returns the job's hash, empty if the job is not ours to start. May be sent again after a lost reply.
CLAIM = (
    PLAIN
    + """
if not plain(KEYS[2]) then
  redis.call('LREM', KEYS[1], 1, ARGV[1])
  return {}
end
local seen = redis.call('HMGET', KEYS[2], 'status', 'hf_execution')
if not (seen[1] == 'started' and seen[2] == ARGV[2]) then
  -- Not in the list: another process found it lying there and put it back.
  if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return {} end
  -- Cancelled meanwhile, or an id that stood on the queue twice.
  if seen[1] ~= 'queued' then return {} end
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
  local at, member = string.format('%.6f', now), ARGV[1] .. ':' .. ARGV[2]
  redis.call('HSET', KEYS[2], 'status', 'started', 'hf_execution', ARGV[2], 'started_at', ARGV[4],
             'last_heartbeat', ARGV[4], 'worker_name', ARGV[5], 'origin', ARGV[6])
  redis.call('HDEL', KEYS[2], 'ended_at')
  redis.call('HINCRBY', KEYS[2], 'hf_starts', 1)
  redis.call('ZADD', KEYS[3], now + ARGV[3], member)
  redis.call('HSET', KEYS[4], 'id', ARGV[2], 'job_id', ARGV[1], 'created_at', at, 'last_heartbeat', at,
             'worker_name', ARGV[5])
  redis.call('ZADD', KEYS[5], now + ARGV[3], ARGV[2])
  redis.call('SADD', KEYS[6], member)
  for i = 4, 6 do redis.call('EXPIRE', KEYS[i], ARGV[3] + 60) end
end
return redis.call('HGETALL', KEYS[2])
"""
)

#: KEYS: worker, set of workers, workers of its queue, executions of the worker.
#: ARGV: lease, worker's time to live, number of fields, fields and values,
#: then per lease: started registry, member, execution, executions of the job.
#: Notes when it was, renews what is still there and returns the members that are not; nothing gone is brought back.
BEAT = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local fields = tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'hf_heard_at', string.format('%.6f', now), unpack(ARGV, 4, 3 + 2 * fields))
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], KEYS[1])
if KEYS[3] ~= '' then redis.call('SADD', KEYS[3], KEYS[1]) end
redis.call('EXPIRE', KEYS[4], ARGV[1] + 60)
local lost = {}
for i = 4 + 2 * fields, #ARGV, 4 do
  if redis.call('ZSCORE', ARGV[i], ARGV[i + 1]) then
    redis.call('ZADD', ARGV[i], 'XX', now + ARGV[1], ARGV[i + 1])
    if redis.call('EXPIRE', ARGV[i + 2], ARGV[1] + 60) == 1 then
      redis.call('HSET', ARGV[i + 2], 'last_heartbeat', string.format('%.6f', now))
    end
    redis.call('EXPIRE', ARGV[i + 3], ARGV[1] + 60)
  else
    lost[#lost + 1] = ARGV[i + 1]
  end
end
return lost
"""

#: KEYS: holder of the turn. ARGV: worker, milliseconds. Returns 1 if the worker has the turn for that long, else 0.
TAKE_TURN = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

#: KEYS: holder of the turn. ARGV: worker.
END_TURN = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

#: KEYS: started registry, queue, set of queues.
#: ARGV: job prefix, execution prefix, executions prefix, worker executions prefix and suffix, takeovers allowed, limit.
#: Puts the jobs of lapsed leases back at the head. Returns two lists of `job:execution`: put back, and
#: taken over too often, which are left for the caller to fail.
RECOVER = (
    PLAIN
    + """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local back, dangerous = {}, {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[7])) do
  local id, execution = string.match(member, '^(.*):([^:]*)$')
  local seen = id and plain(ARGV[1] .. id) and redis.call('HMGET', ARGV[1] .. id, 'status', 'hf_execution', 'worker_name', 'hf_takeovers') or {}
  local owned = seen[1] == 'started' and seen[2] == execution
  if owned and (tonumber(seen[4]) or 0) + 1 >= tonumber(ARGV[6]) then
    dangerous[#dangerous + 1] = member
  else
    if owned then
      redis.call('HSET', ARGV[1] .. id, 'status', 'queued')
      redis.call('HDEL', ARGV[1] .. id, 'started_at', 'worker_name', 'hf_execution')
      redis.call('HINCRBY', ARGV[1] .. id, 'hf_takeovers', 1)
      redis.call('LPUSH', KEYS[2], id)
      redis.call('SADD', KEYS[3], KEYS[2])
      back[#back + 1] = member
    end
    redis.call('ZREM', KEYS[1], member)
    if id then
      redis.call('DEL', ARGV[2] .. member)
      redis.call('ZREM', ARGV[3] .. id, execution)
      if seen[3] then redis.call('SREM', ARGV[4] .. seen[3] .. ARGV[5], member) end
    end
  end
end
return {back, dangerous}
"""
)

#: KEYS: intermediate list, queue, job. ARGV: job id.
#: A job that was popped and never claimed goes back to the head; an id without a waiting job is dropped.
UNPOP = (
    PLAIN
    + """
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
if not plain(KEYS[3]) or redis.call('HGET', KEYS[3], 'status') ~= 'queued' then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[1])
return 1
"""
)

#: KEYS: scheduled registry, queue, set of queues. ARGV: job prefix, limit. Returns how many jobs were due.
PROMOTE = (
    PLAIN
    + """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  if plain(ARGV[1] .. id) and redis.call('HGET', ARGV[1] .. id, 'status') == 'scheduled' then
    redis.call('HSET', ARGV[1] .. id, 'status', 'queued')
    redis.call('RPUSH', KEYS[2], id)
    redis.call('SADD', KEYS[3], KEYS[2])
  end
end
return #due
"""
)

#: KEYS: scheduled registry. ARGV: job id, delay in seconds. Runs inside the MULTI that ends a start.
SCHEDULE = """
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], clock[1] + clock[2] / 1000000 + ARGV[2], ARGV[1])
"""

#: KEYS: finished registry, failed registry. ARGV: jobs to keep, job prefix, results prefix, limit.
#: Forgets finished jobs beyond the newest few, and the ids of those that expired. Returns how many were forgotten.
TRIM = (
    PLAIN
    + """
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now)
local excess = math.min(redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1]), tonumber(ARGV[4]))
if excess <= 0 then return 0 end
local ids = redis.call('ZRANGE', KEYS[1], 0, excess - 1)
for _, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  if plain(ARGV[2] .. id) and redis.call('HGET', ARGV[2] .. id, 'status') == 'finished' then redis.call('DEL', ARGV[2] .. id, ARGV[3] .. id) end
end
return #ids
"""
)
