#!/usr/bin/env bash
# How the installers speak: an error with its reason and its way out, and a command that a dry run only tells.

fail() { # WHAT WHY DO
  printf 'error: %s\n  why: %s\n  do:  %s\n' "$@" >&2
  exit 1
}

run() { # COMMAND…; $dry is the caller's
  if [ "$dry" ]; then printf '+%s\n' "$(printf ' %q' "$@")"; else "$@"; fi
}
