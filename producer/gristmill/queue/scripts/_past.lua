-- An index's history, kept as "attempts,crashes,cohort,alone"; none is all zero.
-- attempts: charged so far; crashes: of a worker that held it; cohort: in how large a company it may run as a suspect;
-- alone: crashes while it was the only suspect its worker held. Two of those make it poison.
local POISON = 2
local function past(text)
  if not text then return 0, 0, 0, 0 end
  local attempts, crashes, cohort, alone = string.match(text, '^(%d+),(%d+),(%d+),(%d+)$')
  return tonumber(attempts), tonumber(crashes), tonumber(cohort), tonumber(alone)
end
local function history(attempts, crashes, cohort, alone)
  return attempts .. ',' .. crashes .. ',' .. cohort .. ',' .. alone
end
