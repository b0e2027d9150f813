-- An index's history, kept as "attempts,crashes,cohort,alone,first"; none is all zero.
-- attempts: charged so far; crashes: of a worker that held it; cohort: in how large a company it may run as a suspect;
-- alone: crashes of a worker that held nothing but it, as a suspect. Workers try such a one in a process apart and find
-- poison by that; who dies all the same may have been killed by anybody. POISON of those end what else would never end;
-- first: when it was claimed for the first time, ms: a claim number is the time of its claim.
local POISON = 8
local function past(text)
  if not text then return 0, 0, 0, 0, 0 end
  local attempts, crashes, cohort, alone, first = string.match(text, '^(%d+),(%d+),(%d+),(%d+),(%d+)$')
  return tonumber(attempts), tonumber(crashes), tonumber(cohort), tonumber(alone), tonumber(first)
end
-- claim: the number under which it was held just now, which is its first claim unless one is known.
local function history(attempts, crashes, cohort, alone, first, claim)
  if first == 0 then first = math.abs(claim) end
  return string.format('%d,%d,%d,%d,%d', attempts, crashes, cohort, alone, first)
end
