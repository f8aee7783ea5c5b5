#!/usr/bin/env bash
# The command that users of RLinf know: manyarms for OpenVLA-OFT, and with --enable-behavior BEHAVIOR beside it.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: requirements/install.sh openvla-oft [--enable-behavior] [options]

Install manyarms of this checkout with PyTorch into .venv (scripts/setup_remote.sh --no-system --torch yes).

  --enable-behavior  then Isaac Sim, OmniGibson and the datasets, in an environment of their own: options are those of
                     scripts/install_behavior.sh
  --dry-run          print what would be done, change nothing
  --help
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target='' behavior='' dry=()
options=()

for argument in "$@"; do
  case $argument in
    --help | -h) usage && exit ;;
    --enable-behavior) behavior=1 ;;
    --dry-run) dry=(--dry-run) ;;
    -*) options+=("$argument") ;;
    *) if [ "$target" ]; then options+=("$argument"); else target=$argument; fi ;;
  esac
done
if [ "$target" != openvla-oft ]; then
  echo "error: ${target:-no target}: the only target here is openvla-oft" >&2
  usage >&2
  exit 2
fi
if [ -z "$behavior" ] && [ "${#options[@]}" -gt 0 ]; then
  echo "error: unknown option ${options[0]}" >&2
  usage >&2
  exit 2
fi

"$here/scripts/setup_remote.sh" --no-system --torch yes --extras torch,video,tensorboard "${dry[@]}"
[ -z "$behavior" ] || "$here/scripts/install_behavior.sh" "${dry[@]}" "${options[@]}"
