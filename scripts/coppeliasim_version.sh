#!/usr/bin/env bash
# Which CoppeliaSim a folder or a tarball's name stands for; sourced by the scripts that must know.

version_of() { # FOLDER: the version of the CoppeliaSim in it, or nothing
  local header found=''
  for header in "$1"/programming/include/simConst.h "$1"/programming/include/simLib/simConst.h; do
    [ -f "$header" ] || continue
    found=$(tr -d '\r' <"$header" | awk '
      $2 == "SIM_PROGRAM_VERSION_NB" && $3 ~ /^[0-9]+$/ { number = $3 }
      $2 ~ /^SIM_VERSION_(MAJOR|MINOR|PATCH)$/ { part[$2] = $3 }
      END {
        if (number) printf "%d.%d.%d", number / 10000, number / 100 % 100, number % 100
        else if ("SIM_VERSION_MAJOR" in part)
          printf "%s.%s.%s", part["SIM_VERSION_MAJOR"], part["SIM_VERSION_MINOR"], part["SIM_VERSION_PATCH"]
      }')
  done
  [ "$found" ] || found=$(sed -n '1,5s/.*release V\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/p' "$1/readme.txt" 2>/dev/null || true)
  [ "$found" ] || found=$(version_in_name "$(cat "$1/.manyarms-origin" 2>/dev/null || basename "$(readlink -f "$1")")")
  echo "$found"
}

version_in_name() { # CoppeliaSim_Edu_V4_1_0_Ubuntu20_04
  sed -n 's/^CoppeliaSim_.*V\([0-9]*\)_\([0-9]*\)_\([0-9]*\).*/\1.\2.\3/p' <<<"$1"
}
