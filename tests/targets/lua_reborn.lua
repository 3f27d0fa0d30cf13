-- Functions in the memory of functions that are gone: each generation's prototypes and strings take the places of an earlier
-- one's, and differ from these in the text of two names only. `lua_reborn.lua GENERATIONS` computes for 30 ms in each.
local TEXT = [[
local functions, clock = {}, os.clock
function functions.inner_%03d(n)
	for k = 1, 2000 do
		n = n + k %% 7
	end
	return n
end
local begin, n = clock(), 0
while clock() - begin < 0.03 do
	n = functions.inner_%03d(n)
end
]]

for generation = 0, tonumber(arg[1]) - 1 do
	local chunk = load(TEXT:format(generation, generation), ("@reborn_%03d.lua"):format(generation))
	chunk()
	chunk = nil
	collectgarbage()
	collectgarbage()
end
