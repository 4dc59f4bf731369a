"""Scripts that change a queue in one step, run inside Redis.

Each ends a state and begins the next in one piece, so a process may die between any two calls.
"""

from __future__ import annotations

#: Whether a key can be read as a job's hash: one of another kind, put there by somebody else, must not stop us.
PLAIN = """
local function plain(key)
  local kind = redis.call('TYPE', key)['ok']
  return kind == 'hash' or kind == 'none'
end
"""

#: Whether anybody will still come for a job: what its status says must be borne out by a list or registry of its
#: queue, which a server that lost part of its memory may lack. `origin` and `execution` are the hash's fields.
ALIVE = """
-- The ids that a queue's two lists hold, read once.
local listed = {}
local function in_lists(name, id)
  if not listed[name] then
    listed[name] = {}
    for _, key in ipairs({queue .. name, queue .. name .. ':intermediate'}) do
      for _, member in ipairs(redis.call('LRANGE', key, 0, -1)) do listed[name][member] = true end
    end
  end
  return listed[name][id]
end

local function alive(id, status, origin, execution)
  if status == 'queued' then return in_lists(origin, id) end
  if status == 'started' then return execution and redis.call('ZSCORE', started .. origin, id .. ':' .. execution) end
  return status == 'scheduled' and redis.call('ZSCORE', scheduled .. origin, id)
end
"""

#: ARGV: five key prefixes, then ids. Returns each job's status, false for one that is not there, `lost` for one that
#: says that it will still run, or waits for a person, while no list or registry has it.
STATES = (
    """
local job, queue, started, scheduled, failed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
"""
    + ALIVE
    + """
local going, states = {queued = true, started = true, scheduled = true}, {}
for i = 6, #ARGV do
  local id = ARGV[i]
  -- An error is a key of another kind, put there by somebody else: no job.
  local seen = redis.pcall('HMGET', job .. id, 'status', 'origin', 'hf_execution')
  local status, origin = seen[1] or false, seen[2] or ''
  local lost = going[status] and not alive(id, status, origin, seen[3])
  lost = lost or status == 'failed' and not redis.call('ZSCORE', failed .. origin, id)
  states[i - 5] = lost and 'lost' or status
end
return states
"""
)

#: KEYS: set of queues, queue. ARGV: ten key prefixes, then per job: id, number of fields, fields and values.
#: Returns how many jobs were new.
ENQUEUE = (
    PLAIN
    + """
local job, results, executions, queue, started, scheduled = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local ended = {ARGV[7], ARGV[8], ARGV[9], ARGV[10]}
"""
    + ALIVE
    + """
-- First all looks, then all writes: what is pushed here must not count as found. The same id twice is one job.
local wanted, seen, at = {}, {}, 11
while at <= #ARGV do
  local id, count = ARGV[at], 2 * tonumber(ARGV[at + 1])
  if not plain(job .. id) then redis.call('DEL', job .. id) end
  local state = redis.call('HMGET', job .. id, 'status', 'origin', 'hf_execution')
  local origin = state[2] or ''
  if not seen[id] and not alive(id, state[1], origin, state[3]) then
    wanted[#wanted + 1] = {id = id, first = at + 2, last = at + 1 + count, origin = state[1] and origin}
  end
  seen[id] = true
  at = at + 2 + count
end
local clock = redis.call('TIME')
local now = string.format('%d.%06d', clock[1], clock[2])
for _, new in ipairs(wanted) do
  if new.origin then
    redis.call('DEL', job .. new.id, job .. new.id .. ':dependents', results .. new.id, executions .. new.id)
    for _, registry in ipairs(ended) do redis.call('ZREM', registry .. new.origin, new.id) end
  end
  redis.call('HSET', job .. new.id, 'hf_queued_at', now, unpack(ARGV, new.first, new.last))
  redis.call('RPUSH', KEYS[2], new.id)
end
if #wanted > 0 then redis.call('SADD', KEYS[1], KEYS[2]) end
return #wanted
"""
)

#: KEYS: set of queues, queue, failed registry. ARGV: job prefix, number of counters, counters, ids. Returns how many.
REQUEUE_FAILED = (
    PLAIN
    + """
local counters = {}
for i = 1, tonumber(ARGV[2]) do counters[i] = ARGV[2 + i] end
local moved = 0
for i = 3 + #counters, #ARGV do
  local key = ARGV[1] .. ARGV[i]
  if redis.call('ZREM', KEYS[3], ARGV[i]) == 1 and plain(key) and redis.call('HGET', key, 'status') == 'failed' then
    redis.call('HDEL', key, 'started_at', 'ended_at', 'exc_info', unpack(counters))
    redis.call('HSET', key, 'status', 'queued')
    redis.call('PERSIST', key)
    redis.call('RPUSH', KEYS[2], ARGV[i])
    redis.call('SADD', KEYS[1], KEYS[2])
    moved = moved + 1
  end
end
return moved
"""
)

#: KEYS: a list or sorted set of job ids. ARGV: `list` or `zset`, job prefix, results prefix, how many at most.
#: Takes ids off and deletes their jobs, except one that a process has in hand. Returns how many were taken.
PURGE = (
    PLAIN
    + """
local ids
if ARGV[1] == 'list' then
  ids = redis.call('LPOP', KEYS[1], ARGV[4]) or {}
else
  ids = redis.call('ZRANGE', KEYS[1], 0, ARGV[4] - 1)
  if #ids > 0 then redis.call('ZREM', KEYS[1], unpack(ids)) end
end
for _, id in ipairs(ids) do
  if not plain(ARGV[2] .. id) or redis.call('HGET', ARGV[2] .. id, 'status') ~= 'started' then
    redis.call('DEL', ARGV[2] .. id, ARGV[3] .. id)
  end
end
return #ids
"""
)
