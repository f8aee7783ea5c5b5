#!/usr/bin/env bash
# Prepare a headless Ubuntu or Debian server: the system packages that CoppeliaSim and rendering need, and manyarms.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/setup_remote.sh [options]

Install the system packages (Xvfb, OpenGL, the X libraries of CoppeliaSim's Qt, compilers), with apt, and manyarms of
this checkout into a virtual environment. What is there already is left as it is.

  --venv DIR        the virtual environment (default: .venv of this checkout)
  --python PROGRAM  the Python to make it with, 3.11 or later (default: one that is found)
  --torch WHICH     PyTorch, for training: no (default), yes (the package index's), or cpu, cu126, cu128 ... (PyTorch's own index)
  --extras LIST     extras of manyarms (default: gym,video,datasets,serve,tensorboard)
  --no-system       leave the system packages alone
  --no-python       only the system packages
  --dry-run         print what would be done, change nothing
  --help
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$here/.venv python='' torch=no extras=gym,video,datasets,serve,tensorboard system=1 packages=1 dry=''

# One word a package; a|b: the first that this release offers, as names differ; a?: left out where it is not offered.
wanted=(
  xvfb xauth x11-utils x11-xserver-utils mesa-utils?
  "libgl1|libgl1-mesa-glx" libgl1-mesa-dri libglx-mesa0 libglu1-mesa libegl1 libosmesa6?
  "libglib2.0-0t64|libglib2.0-0" libdbus-1-3 libfontconfig1 libfreetype6 libsm6 libice6
  libx11-6 libx11-xcb1 libxau6 libxext6 libxi6 libxrender1 libxkbcommon0 libxkbcommon-x11-0
  libxcb1 libxcb-glx0 libxcb-icccm4 libxcb-image0 libxcb-keysyms1 libxcb-randr0 libxcb-render0 libxcb-render-util0
  libxcb-shape0 libxcb-shm0 libxcb-sync1 "libxcb-util1|libxcb-util0" libxcb-xfixes0 libxcb-xinerama0 libxcb-xkb1
  libavcodec-dev? libavformat-dev? libswscale-dev? libraw1394-11? libmpfr6? libusb-1.0-0
  git wget curl ca-certificates tar xz-utils build-essential libffi-dev python3-dev python3-venv
)

# shellcheck source=/dev/null # fail, run
. "$(dirname "${BASH_SOURCE[0]}")/telling.sh"

while [ $# -gt 0 ]; do
  case $1 in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --venv | --python | --torch | --extras)
      [ "${2:-}" ] || { echo "error: $1 needs a value" >&2 && usage >&2 && exit 2; }
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --no-system) system='' ;;
    --no-python) packages='' ;;
    --dry-run) dry=1 ;;
    --help | -h) usage && exit ;;
    *) echo "error: unknown option $1" >&2 && usage >&2 && exit 2 ;;
  esac
  shift
done
[[ $torch =~ ^(no|yes|cpu|cu[0-9]+|rocm[0-9.]+|xpu)$ ]] || { echo "error: --torch is no, yes, cpu, cu126, ..." >&2 && usage >&2 && exit 2; }

# -- system packages ------------------------------------------------------------------------------------------------

installed() { # PACKAGE
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

offered() { # PACKAGE; not one that only others stand in for
  apt-cache policy "$1" 2>/dev/null | grep 'Candidate:' | grep -qv '(none)'
}

missing() { # the words of wanted of which no package is installed
  local word name names
  for word in "${wanted[@]}"; do
    IFS='|' read -ra names <<<"${word%\?}"
    for name in "${names[@]}"; do installed "$name" && continue 2; done
    echo "$word"
  done
}

choose() { # WORD…: sets chosen and absent
  local word name names
  chosen=() absent=()
  for word in "$@"; do
    IFS='|' read -ra names <<<"${word%\?}"
    for name in "${names[@]}"; do offered "$name" && chosen+=("$name") && continue 2; done
    [ "$word" != "${word%\?}" ] || absent+=("$word")
  done
}

apt() { # ARGUMENT…: as root
  run "${root[@]}" apt-get "$@" || fail "apt-get $1 failed" "see above: no network, a full disk ($(df -h --output=avail / | tail -1 | tr -d ' ') free), or another apt at work" "mend that and run this again"
}

become_root() { # sets root; fails where nobody can be asked for a password
  root=()
  [ "$(id -u)" != 0 ] || return 0
  root=(sudo)
  command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }
}

install_system() {
  local words
  if ! { command -v apt-get && command -v dpkg-query; } >/dev/null; then
    echo "note: there is no apt here. Install what your system calls these: ${wanted[*]}" >&2
    left=1
    return
  fi
  # Ubuntu 22.04 has a Python that is new enough beside its own.
  [ -z "$packages" ] || find_python || wanted+=("python3.13-venv|python3.12-venv|python3.11-venv?" "python3.13-dev|python3.12-dev|python3.11-dev?")
  mapfile -t words < <(missing)
  choose "${words[@]}"
  [ "${#chosen[@]}${#absent[@]}" != 00 ] || { echo "system packages: all are there" && return; }
  if ! become_root; then
    [ "${#absent[@]}" = 0 ] || chosen+=("${absent[@]%%|*}")
    printf 'note: system packages are missing, and there is no way to become root here. Have someone run:\n  sudo apt-get update && sudo apt-get install -y --no-install-recommends %s\n' "${chosen[*]}" >&2
    left=1
    return
  fi
  apt update -qq
  choose "${words[@]}"
  if [ "${#absent[@]}" != 0 ]; then
    [ "$dry" ] || fail "apt does not offer ${absent[*]}" "Ubuntu keeps some of them in universe, which may be off here" "sudo add-apt-repository universe, then run this again"
    echo "(apt has no lists yet, so that names may turn out otherwise: ${absent[*]})"
    chosen+=("${absent[@]%%|*}")
  fi
  echo "installing ${#chosen[@]} system packages: ${chosen[*]}"
  root+=(env DEBIAN_FRONTEND=noninteractive)
  apt install -y -qq --no-install-recommends "${chosen[@]}"
}

# -- Python ---------------------------------------------------------------------------------------------------------

find_python() { # sets python
  local candidate
  for candidate in ${python:+"$python"} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      return
    fi
    [ -z "$python" ] || return 1
  done
  return 1
}

pip() { # ARGUMENT…
  run "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
    fail "pip could not install ${*: -1}" "see above: no network, no package index, or a full disk ($(df -h --output=avail "$venv" | tail -1 | tr -d ' ') free)" \
      "mend that and run this again; behind a mirror: export PIP_INDEX_URL=..."
}

has() { # MODULE…
  [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "$@"
}

install_python() {
  if [ -x "$venv/bin/python" ]; then
    echo "virtual environment: $venv is there"
  else
    find_python || fail "${python:-python3} is not Python 3.11 or later" "manyarms needs it (workers may run in older ones)" \
      "Ubuntu 20.04: add-apt-repository ppa:deadsnakes/ppa && apt-get install python3.11-venv python3.11-dev; or use pyenv, uv or conda; then --python PROGRAM"
    echo "making $venv with $python"
    run "$python" -m venv "$venv" || fail "$venv could not be made" "see above: Debian's Python needs the package python3-venv, and the disk room" \
      "sudo apt-get install python3-venv, or: --venv DIR"
  fi
  if [ "$torch" != no ] && has torch safetensors; then
    echo "torch: there already"
  elif [ "$torch" != no ]; then
    echo "installing torch"
    if [ "$torch" = yes ]; then pip torch; else pip --index-url "https://download.pytorch.org/whl/$torch" torch; fi
    pip safetensors
  fi
  if [ "$(cat "$venv/.manyarms-extras" 2>/dev/null)" = "${here}[$extras]" ] && has manyarms; then
    echo "manyarms: there already, with $extras"
  else
    echo "installing manyarms of $here, with $extras"
    # The pinned versions constrain what is installed; but torch is the user's choice.
    [ "$dry" ] || sed '/^torch==/d' "$here/requirements/dev.txt" >"$venv/.manyarms-constraints"
    pip --constraint "$venv/.manyarms-constraints" --editable "${here}[$extras]"
    [ "$dry" ] || echo "${here}[$extras]" >"$venv/.manyarms-extras"
  fi
  [ "$torch" != no ] || has torch || echo "note: training, and examples/training.py, need PyTorch: --torch cpu, --torch cu126 ..."
}

trap 'echo "interrupted: run this again" >&2; exit 130' INT TERM
left=''
[ -z "$system" ] || install_system
[ -z "$packages" ] || install_python
[ -z "$left" ] || fail "the system packages are not installed yet" "see the note above" "install them, then run this again"
echo "next: scripts/install_coppeliasim.sh"
