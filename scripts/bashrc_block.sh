#!/usr/bin/env bash
# A block of exports in someone's .bashrc, written once and replaced when it changes. Needs telling.sh; $dry is the caller's.

without_block() { # FILE BEGIN END: the file without what an earlier run wrote; a block without its end is left as it is
  awk -v begin="$2" -v end="$3" '
    $0 == begin { printf "%s", held; held = ""; inside = 1 }
    { if (inside) held = held $0 "\n"; else print }
    $0 == end { held = ""; inside = 0 }
    END { printf "%s", held }' "$1"
}

write_block() { # FILE NAME LINES
  local bashrc=$1 begin="# >>> $2 (manyarms) >>>" end="# <<< $2 (manyarms) <<<" block file=$1
  block=$(printf '%s\n' "$begin" "$3" "$end")
  [ ! -e "$file" ] || file=$(readlink -f "$file")
  if [ -f "$file" ] && [[ $(<"$file") == *"$block"* ]]; then
    echo "$bashrc has them already"
  elif [ "$dry" ]; then
    printf '+ write to %s:\n%s\n' "$bashrc" "$block"
  # A copy that is renamed: a full disk must not cost anyone their .bashrc.
  elif touch "$file" && cp -p "$file" "$file.manyarms" && without_block "$file" "$begin" "$end" >"$file.manyarms" &&
    printf '%s\n' "$block" >>"$file.manyarms" && mv "$file.manyarms" "$file"; then
    echo "written to $bashrc; in this shell: source $bashrc (jobs that read no .bashrc, as of cron or Slurm, need them too)"
  else
    rm -f "$file.manyarms"
    fail "$bashrc could not be written" "see above" "add the lines above to it yourself, and use --no-bashrc"
  fi
}
