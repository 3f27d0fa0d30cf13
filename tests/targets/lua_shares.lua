-- Burns known shares of CPU time in five functions: in a recursion, a coroutine, a method, the library, and a function that C
-- calls back. lua_shares.lua SECONDS; prints the shares, in percent.
local shares = { recursing = 10, producing = 15, method = 20, in_library = 25, comparing = 30 }
local rounds = 10
local clock = os.clock

function burn(till)
  local total = 0
  while clock() < till do
    for number = 1, 400 do
      total = total + number * number
    end
  end
  return total
end

local function till(name, seconds)
  return clock() + seconds * shares[name] / 100 / rounds
end

function recursing(depth, limit)
  if depth == 0 then
    burn(limit)
    return 0
  end
  local below = recursing(depth - 1, limit)
  return below + 1
end

function producing(limit)
  while clock() < limit do
    burn(math.min(limit, clock() + 0.002))
    coroutine.yield(1)
  end
  return nil
end

function consuming(limit)
  local produce = coroutine.wrap(producing)
  local got = produce(limit)
  while got do
    got = produce()
  end
end

Account = {}
Account.__index = Account

function Account:method(limit)
  burn(limit)
  return self
end

function in_library(limit)
  while clock() < limit do
    local text = string.rep("the quick brown fox ", 200)
    text = text:gsub("%w+", "x")
    text = text:upper():reverse()
  end
end

local comparing_till = 0
function comparing(left, right)
  if clock() < comparing_till then
    burn(comparing_till)
  end
  return left < right
end

function sorting(limit)
  comparing_till = limit
  local list = { 5, 3, 1, 4, 2 }
  table.sort(list, comparing)
  return list
end

function work(seconds)
  local account = setmetatable({}, Account)
  for _ = 1, rounds do
    recursing(20, till("recursing", seconds))
    consuming(till("producing", seconds))
    account:method(till("method", seconds))
    in_library(till("in_library", seconds))
    sorting(till("comparing", seconds))
  end
end

work(tonumber(arg[1]) or 1)
print("recursing 10 producing 15 method 20 in_library 25 comparing 30")
