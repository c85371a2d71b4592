-- A first-in-first-out queue in one bin of one record.
--
-- The bin holds a map: `rear` takes what arrives, `front` gives what leaves, `pos` is the place in `front` of the oldest
-- value, `size` counts both. Only the ends of the two lists are ever removed from, so nothing is shifted: when `front` is
-- used up, `rear` becomes `front` as a whole; when the oldest value, at `pos`, is taken, the last one of `front` is put
-- into its place, so that `front` turns round while it is used up. From the moment when `pos` reaches the end, the oldest
-- value is the last one.
--
--   front = [1 2 3 4 5]  pos 1    take 1:  [5 2 3 4]  pos 2    take 2:  [5 4 3]  pos 3
--   now pos is the last place     take 3:  [5 4]               take 4:  [5]          take 5:  none
--
-- Functions for callers: enqueue, enqueue_many, dequeue, dequeue_many, peek, size. All of them are atomic: the server runs
-- one at a time on a record, and what raises an error has changed nothing.

local NEVER = -1
local MAX_BIN_BYTES = 15

-- The queue in the bin, or nil. Raises an error when the bin holds something else.
local function load(rec, bin)
  if #bin > MAX_BIN_BYTES then
    -- The server would run on and store nothing.
    error("bin name of " .. #bin .. " bytes, at most " .. MAX_BIN_BYTES)
  end
  if not aerospike:exists(rec) then
    return nil
  end
  local q = rec[bin]
  if q ~= nil and (getmetatable(q) ~= getmetatable(map()) or q.size == nil) then
    error("bin " .. bin .. " holds no queue")
  end
  return q
end

-- Writes the queue back. Raises an error that begins with REFUSED when the server does not take the record.
local function store(rec, bin, q)
  rec[bin] = q
  record.set_ttl(rec, NEVER)
  local code
  if aerospike:exists(rec) then
    code = aerospike:update(rec)
  else
    code = aerospike:create(rec)
  end
  if code ~= nil and code ~= 0 then
    error("REFUSED " .. tostring(code))
  end
end

local function append(q, value)
  if q.rear == nil then
    q.rear = list()
  end
  list.append(q.rear, value)
  q.size = q.size + 1
end

-- Takes the oldest value of a queue that has one.
local function take(q)
  if q.front == nil then
    q.front = q.rear
    q.pos = 1
    map.remove(q, "rear")
  end
  local front, pos = q.front, q.pos
  local last = list.size(front)
  local value
  if pos < last then
    value = front[pos]
    front[pos] = front[last]
    q.pos = pos + 1
  else
    value = front[last]
  end
  if last == 1 then
    map.remove(q, "front")
  else
    list.remove(front, last)
  end
  q.size = q.size - 1
  return value
end

-- Appends one value; returns the new size.
function enqueue(rec, bin, value)
  local q = load(rec, bin) or map { size = 0, pos = 0 }
  append(q, value)
  store(rec, bin, q)
  return q.size
end

-- Appends all values of a list, in order; returns the new size.
function enqueue_many(rec, bin, values)
  local q = load(rec, bin) or map { size = 0, pos = 0 }
  for value in list.iterator(values) do
    append(q, value)
  end
  store(rec, bin, q)
  return q.size
end

-- Removes and returns the oldest value; nil when there is none.
function dequeue(rec, bin)
  local q = load(rec, bin)
  if q == nil or q.size == 0 then
    return nil
  end
  local value = take(q)
  store(rec, bin, q)
  return value
end

-- Removes and returns the oldest values, at most `limit`, as a list.
function dequeue_many(rec, bin, limit)
  local values = list()
  local q = load(rec, bin)
  if q == nil or q.size == 0 then
    return values
  end
  for _ = 1, math.min(limit, q.size) do
    list.append(values, take(q))
  end
  store(rec, bin, q)
  return values
end

-- The oldest values, at most `limit`, as a list. Changes nothing.
function peek(rec, bin, limit)
  local values = list()
  local q = load(rec, bin)
  if q == nil then
    return values
  end
  local left = math.min(limit, q.size)
  local function look(buffer, first, last, step)
    for at = first, last, step do
      if left == 0 then
        return
      end
      list.append(values, buffer[at])
      left = left - 1
    end
  end
  if q.front ~= nil then
    local last = list.size(q.front)
    look(q.front, q.pos, last, 1)
    -- Behind them the part that was turned round already.
    look(q.front, math.min(q.pos - 1, last), 1, -1)
  end
  if q.rear ~= nil then
    look(q.rear, 1, list.size(q.rear), 1)
  end
  return values
end

-- How many values there are.
function size(rec, bin)
  local q = load(rec, bin)
  if q == nil then
    return 0
  end
  return q.size
end
