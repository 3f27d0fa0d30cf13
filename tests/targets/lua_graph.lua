-- Calls that follow a fixed graph: whatever a stack of this program shows must be a path of it. `lua_graph.lua SECONDS` prints
-- the edges, `CALLER CALLEE` a line, by the lines where functions begin (the main chunk has 0), and their names, `LINE NAME`.
--
-- Short functions, so that samples meet calls, returns and compiled code with functions inside each other: global, local,
-- recursive and variadic ones, methods, metamethods, tail calls, coroutines, and what C calls back.
local clock = os.clock

function leaf(n) return n + 1 end

local function twig(n)
  local sum = 0
  for i = 1, 3 do sum = sum + leaf(n + i) end
  return sum
end

function branch(n)
  return twig(n) + leaf(n)
end

local function fib(n)
  if n < 2 then return leaf(n) end
  return fib(n - 1) + fib(n - 2)
end

local function even(n, odd)
  if n == 0 then return leaf(0) end
  return odd(n - 1, even)
end

local function odd(n, other)
  if n == 0 then return twig(0) end
  return other(n - 1, odd)
end

local function variadic(...)
  local n = select("#", ...)
  return leaf(n) + branch((...))
end

local Thing = {}
Thing.__index = Thing
Thing.__lt = function(a, b) return leaf(a.n) < leaf(b.n) end
Thing.__call = function(self, n) return twig(n + self.n) end

function Thing.new(n) return setmetatable({ n = leaf(n) }, Thing) end

function Thing:grow(n)
  self.n = leaf(self.n) % 7 + n
  return self
end

local function numbers(n)
  for i = 1, n do coroutine.yield(leaf(i)) end
end

local function consume()
  local sum = 0
  for n in coroutine.wrap(function() numbers(8) end) do sum = sum + leaf(n) end
  return sum
end

local function compare(a, b) return leaf(a) < leaf(b) end

local function sort()
  local list = { 5, 3, 1, 4, 2 }
  table.sort(list, compare)
  return list
end

local function replace(word) return word .. leaf(1) end

local function fail(n)
  if leaf(n) % 2 == 0 then error("even") end
  return n
end

local function closures(n)
  local sum = 0
  for i = 1, n do
    local short = function(x) return leaf(x + i) end
    sum = sum + short(i)
  end
  return sum
end

local function round(n)
  branch(n)
  fib(7)
  even(n % 9, odd)
  variadic(1, 2, n)
  local thing, other = Thing.new(n % 5), Thing.new(n % 3)
  thing:grow(1):grow(2)
  if thing < other then thing(n) end
  consume()
  sort();
  ("a bc d"):gsub("%w+", replace)
  pcall(fail, n)
  closures(4)
end

local function main(seconds)
  local n, till = 0, clock() + seconds
  while clock() < till do
    n = n + 1
    for i = 1, 20 do round(n + i) end
  end
end

main(tonumber(arg[1]) or 1)

local function line(f) return type(f) == "function" and debug.getinfo(f, "S").linedefined or f end
local function edges(caller, ...)
  for _, callee in ipairs({ ... }) do print(line(caller), line(callee)) end
end
local inside, short = line(consume) + 2, line(closures) + 3
-- What prints this is part of it.
edges(0, main, edges, line)
edges(edges, line)
edges(main, round)
edges(round, branch, fib, even, odd, leaf, twig, variadic, Thing.new, Thing.grow, Thing.__lt, Thing.__call, consume, sort,
  replace, fail, closures)
edges(branch, twig, leaf)
edges(twig, leaf)
edges(fib, fib, leaf)
edges(variadic, leaf, branch)
edges(Thing.__lt, leaf)
edges(Thing.__call, twig)
edges(Thing.new, leaf)
edges(Thing.grow, leaf)
edges(consume, inside, leaf)
edges(inside, numbers)
edges(numbers, leaf)
edges(sort, compare)
edges(compare, leaf)
edges(replace, leaf)
edges(fail, leaf)
edges(closures, short, leaf)
edges(short, leaf)
for name, f in pairs({ leaf = leaf, twig = twig, branch = branch, fib = fib, even = even, odd = odd, other = odd,
  variadic = variadic, new = Thing.new, grow = Thing.grow, numbers = numbers, consume = consume, sort = sort,
  closures = closures, round = round, main = main, short = short, line = line, edges = edges }) do
  print(line(f), name)
end
-- A tail call stands in its caller's place: `even` may be called by the name of what called `odd`.
print(line(even), "other")
