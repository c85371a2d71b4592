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

-- Bytes of a number of Lua in MessagePack. Before Lua 5.4 all of them are floats.
local function number_bytes(number)
  if math.type == nil or math.type(number) ~= "integer" then
    return 9
  elseif number >= -32 and number < 128 then
    return 1
  elseif number >= -128 and number < 256 then
    return 2
  elseif number >= -32768 and number < 65536 then
    return 3
  elseif number >= -2147483648 and number < 4294967296 then
    return 5
  end
  return 9
end

-- Bytes of what stands before so many bytes or parts; `short` of them have it in one byte, `byte` = 255 in two.
local function head_bytes(count, short, byte)
  if count <= short then
    return 1
  elseif count <= byte then
    return 2
  elseif count <= 65535 then
    return 3
  end
  return 5
end

-- Bytes of a value in MessagePack.
local function value_bytes(value)
  local kind = type(value)
  if kind == "nil" or kind == "boolean" then
    return 1
  elseif kind == "number" then
    return number_bytes(value)
  elseif kind == "string" then
    return head_bytes(#value, 31, 255) + #value
  end
  local meta, size = getmetatable(value), 0
  if meta == getmetatable(list()) then
    local count = list.size(value)
    for at = 1, count do
      size = size + value_bytes(value[at])
    end
    return head_bytes(count, 15, 15) + size
  elseif meta == getmetatable(map()) then
    for key, one in map.pairs(value) do
      size = size + value_bytes(key) + value_bytes(one)
    end
    return head_bytes(map.size(value), 15, 15) + size
  end
  size = bytes.size(value)
  return head_bytes(size, -1, 255) + size
end

-- A function that is asked for one value after another. It says whether the value goes into the answer too, and its bytes. All
-- that do have at most `max_bytes`, but the first one may have more; none has more than `max_value_bytes`. 0 or nil = no bound.
local function room(max_bytes, max_value_bytes)
  local left, most = max_bytes or 0, max_value_bytes or 0
  local bounded = left > 0
  local first = true
  return function(value)
    if not bounded and most <= 0 then
      return true, 0
    end
    local size, alone = value_bytes(value), first
    first = false
    left = left - size
    if most > 0 and size > most then
      return false, size
    end
    return alone or not bounded or left >= 0, size
  end
end

-- The oldest value of a queue that has one.
local function oldest(q)
  if q.front == nil then
    return q.rear[1]
  end
  return q.front[math.min(q.pos, list.size(q.front))]
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

-- Removes and returns the oldest values, at most `limit` and `max_bytes`, as a list. When the oldest has more bytes than
-- `max_value_bytes`: minus its bytes, a number, and nothing is removed.
function dequeue_many(rec, bin, limit, max_bytes, max_value_bytes)
  local values = list()
  local q = load(rec, bin)
  if q == nil or q.size == 0 then
    return values
  end
  local takes = room(max_bytes, max_value_bytes)
  for _ = 1, math.min(limit, q.size) do
    local fits, size = takes(oldest(q))
    if not fits then
      if list.size(values) == 0 then
        return -size
      end
      break
    end
    list.append(values, take(q))
  end
  store(rec, bin, q)
  return values
end

-- What `dequeue_many` would return. Changes nothing.
function peek(rec, bin, limit, max_bytes, max_value_bytes)
  local values = list()
  local q = load(rec, bin)
  if q == nil then
    return values
  end
  local left, takes = math.min(limit, q.size), room(max_bytes, max_value_bytes)
  local too_large
  local function look(buffer, first, last, step)
    for at = first, last, step do
      if left == 0 then
        return
      end
      local fits, size = takes(buffer[at])
      if not fits then
        if list.size(values) == 0 then
          too_large = -size
        end
        left = 0
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
  return too_large or values
end

-- How many values there are.
function size(rec, bin)
  local q = load(rec, bin)
  if q == nil then
    return 0
  end
  return q.size
end
