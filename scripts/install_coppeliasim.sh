#!/usr/bin/env bash
# Install CoppeliaSim 4.1.0, the version that RLBench and PyRep are made for.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/install_coppeliasim.sh [options]

Download CoppeliaSim 4.1.0 (Edu), unpack it, and set the variables that PyRep reads. No root is needed.

  --prefix DIR      where it is to lie (default: $HOME/CoppeliaSim)
  --ubuntu RELEASE  the build to take: 20_04 (default; for newer systems too), 18_04 or 16_04
  --url URL         download from here instead
  --archive FILE    unpack this tarball instead of downloading one
  --sha256 SUM      refuse a tarball with another checksum
  --cache DIR       where a download is kept until it is complete (default: ~/.cache/manyarms)
  --no-bashrc       leave ~/.bashrc alone, only print the variables
  --dry-run         print what would be done, change nothing
  --help
TEXT
}

version=4.1.0
prefix=${HOME:?}/CoppeliaSim ubuntu=20_04 url='' archive='' sum='' cache=${XDG_CACHE_HOME:-$HOME/.cache}/manyarms
bashrc=$HOME/.bashrc dry=''

# shellcheck source=/dev/null # fail, run
. "$(dirname "${BASH_SOURCE[0]}")/telling.sh"
# shellcheck source=/dev/null # write_block
. "$(dirname "${BASH_SOURCE[0]}")/bashrc_block.sh"

while [ $# -gt 0 ]; do
  case $1 in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --prefix | --ubuntu | --url | --archive | --sha256 | --cache)
      [ "${2:-}" ] || { echo "error: $1 needs a value" >&2 && usage >&2 && exit 2; }
      name=${1#--} && [ "$name" != sha256 ] || name=sum
      printf -v "$name" %s "$2"
      shift
      ;;
    --no-bashrc) bashrc='' ;;
    --dry-run) dry=1 ;;
    --help | -h) usage && exit ;;
    *) echo "error: unknown option $1" >&2 && usage >&2 && exit 2 ;;
  esac
  shift
done
case $ubuntu in 20_04 | 18_04 | 16_04) ;; *) echo "error: --ubuntu is 20_04, 18_04 or 16_04" >&2 && usage >&2 && exit 2 ;; esac

why_not_newer="RLBench's scenes and PyRep are made for $version; with newer versions (4.10, say) PyRep fails with \
\"Handle ... does not exist\", as they name the objects of a scene in another way"

# shellcheck source=/dev/null # version_of, version_in_name
. "$(dirname "${BASH_SOURCE[0]}")/coppeliasim_version.sh"

check_machine() {
  local tool
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
    fail "CoppeliaSim $version does not run on $(uname -s) $(uname -m)" "its makers built it for Linux on x86_64 only" \
      "use an x86_64 Linux machine; on others, choose another simulator (manyarms --help)"
  for tool in tar xz awk sed; do
    command -v "$tool" >/dev/null || fail "$tool is not installed" "the tarball cannot be unpacked without it" \
      "scripts/setup_remote.sh, or: sudo apt-get install tar xz-utils gawk sed"
  done
}

download() { # URL FILE: go on where an interrupted download ended
  local rc=0 progress=(--silent --show-error)
  [ ! -t 2 ] || progress=(--progress-bar)
  if command -v curl >/dev/null; then
    run curl --fail --location --continue-at - --retry 3 --connect-timeout 20 --speed-limit 1000 --speed-time 60 \
      "${progress[@]}" --output "$2" "$1" || rc=$?
    case $rc in
      0) ;;
      23) fail "the download cannot be written to $cache" "the disk is full, or not writable: $(df -h --output=avail "$cache" | tail -1 | tr -d ' ') free" \
        "make room, or name another folder: --cache DIR; what has been downloaded is kept" ;;
      33 | 36) # the server cannot resume
        echo "the server cannot go on in the middle: starting again" >&2
        rm -f "$2" && download "$1" "$2" ;;
      22) # also what a server says that is asked to go on with a file that is complete
        [ -s "$2" ] && xz --test "$2" 2>/dev/null ;;
      *) return "$rc" ;;
    esac
  elif command -v wget >/dev/null; then
    run wget --continue --tries=3 --timeout=60 --no-verbose --output-document="$2" "$1" || rc=$?
    [ "$rc" != 3 ] || fail "the download cannot be written to $cache" "the disk is full, or not writable" "make room, or name another folder: --cache DIR"
    return "$rc"
  else
    fail "neither curl nor wget is installed" "something must download CoppeliaSim" \
      "scripts/setup_remote.sh, or download it elsewhere and give --archive FILE"
  fi
}

fetch() { # sets archive
  local name=CoppeliaSim_Edu_V4_1_0_Ubuntu$ubuntu.tar.xz each addresses
  if [ "$url" ]; then
    addresses=("$url") name=$(basename "${url%%\?*}")
  else
    addresses=(
      "https://downloads.coppeliarobotics.com/V4_1_0/$name"
      "https://www.coppeliarobotics.com/files/V4_1_0/$name"
      "https://www.coppeliarobotics.com/files/$name"
    )
  fi
  archive=$cache/$name
  [ ! -f "$archive" ] || { echo "downloaded already: $archive" && return; }
  run mkdir -p "$cache" || fail "$cache cannot be made" "it is where the download goes" "name another folder: --cache DIR"
  for each in "${addresses[@]}"; do
    [ ! -s "$archive.part" ] || echo "going on with $archive.part ($(stat -c %s "$archive.part") bytes are there)"
    echo "downloading $each"
    [ ! "$dry" ] || [ "${#addresses[@]}" = 1 ] || echo "(if that fails: ${addresses[*]:1})"
    # In a condition, set -e is off inside of it: download says itself what is fatal.
    if download "$each" "$archive.part"; then
      run mv "$archive.part" "$archive"
      return
    fi
    echo "that did not work" >&2
  done
  fail "CoppeliaSim could not be downloaded" "no network, an address that is gone, or a connection that broke (see above)" \
    "run this again: it goes on where it ended. Behind a proxy: export https_proxy=...; without network: download
       ${addresses[0]}
       elsewhere, and give --archive FILE; or give a mirror of your own: --url URL"
}

discard() { # a download that is no good; never the user's own file
  [ "$archive" != "$cache/$(basename "$archive")" ] || run rm -f "$archive"
}

check_archive() { # sets top
  local actual found
  [ -f "$archive" ] || fail "there is no file $archive" "--archive names the tarball to unpack" "give its path"
  if [ "$sum" ]; then
    actual=$(sha256sum "$archive" | cut -d' ' -f1)
    [ "$actual" = "${sum,,}" ] || {
      discard
      fail "$archive is not the file that was meant" "its SHA-256 is $actual, not $sum" "run this again to download it anew, or correct --sha256"
    }
  fi
  top=$(tar -tJf "$archive" 2>/dev/null | sed 's#^\./##' | cut -d/ -f1 | sort -u | grep -v '^$') || {
    discard
    fail "$archive is no complete .tar.xz file" "the download was cut short, or the server sent something else (a login page, say)" "run this again"
  }
  found=$(version_in_name "$top")
  [ "$(wc -l <<<"$top")" = 1 ] && [ "$found" ] ||
    fail "$archive does not hold CoppeliaSim" "it holds: $(tr '\n' ' ' <<<"$top")" "give the tarball CoppeliaSim_Edu_V4_1_0_Ubuntu$ubuntu.tar.xz"
  [ "$found" = "$version" ] || fail "$archive holds CoppeliaSim $found, not $version" "$why_not_newer" \
    "run this without --url and --archive, or give the tarball of $version"
}

check_prefix() { # succeeds when there is nothing to install
  local there parent
  prefix=$(realpath -m "$prefix")
  if [ -e "$prefix" ] && [ -n "$(ls -A "$prefix")" ]; then
    there=$(version_of "$prefix")
    [ -f "$prefix/libcoppeliaSim.so" ] || fail "$prefix exists, and is no CoppeliaSim" "there is no libcoppeliaSim.so in it" "move it away, or give another --prefix"
    [ "$there" = "$version" ] || fail "$prefix holds CoppeliaSim ${there:-of an unknown version}, not $version" "$why_not_newer" \
      "move it away, or give another --prefix; then scripts/reinstall_rlbench.sh, as PyRep is linked against it"
    return 0
  fi
  parent=$(dirname "$prefix")
  while [ ! -e "$parent" ]; do parent=$(dirname "$parent"); done
  [ -w "$parent" ] || fail "$prefix cannot be written" "$parent is read-only for $(id -un)" "give another --prefix"
  return 1
}

unpack() {
  local parent need free
  parent=$(dirname "$prefix")
  run mkdir -p "$parent"
  echo "unpacking into $prefix"
  if [ "$dry" ]; then
    run tar -xJf "$archive" -C "$parent/.coppeliasim.XXXXXX"
    run mv -T "$parent/.coppeliasim.XXXXXX/CoppeliaSim_Edu_V4_1_0_Ubuntu$ubuntu" "$prefix"
    return
  fi
  need=$(xz --robot --list "$archive" | awk '$1 == "totals" { print int($5 / 1024) + 1 }')
  free=$(df -k --output=avail "$parent" | tail -1)
  [ "$need" -lt "$free" ] || fail "there is no room for CoppeliaSim in $parent" "it takes $((need / 1024 + 1)) MB, and $((free / 1024)) MB are free" "make room, or give another --prefix"
  # Unpacked beside its place and renamed: whoever looks sees all of it or nothing.
  unpacked=$(mktemp -d "$parent/.coppeliasim.XXXXXX") || fail "$parent cannot be written" "a folder could not be made in it" "give another --prefix"
  tar -xJf "$archive" -C "$unpacked" --no-same-owner || fail "$archive could not be unpacked" "see tar's message above; the disk may be full" "make room, or give another --prefix"
  [ -f "$unpacked/$top/libcoppeliaSim.so" ] || fail "$archive holds no libcoppeliaSim.so" "PyRep is linked against it" "take the tarball from coppeliarobotics.com"
  [ "$(version_of "$unpacked/$top")" = "$version" ] ||
    fail "$archive holds CoppeliaSim $(version_of "$unpacked/$top"), not $version, whatever its name says" "$why_not_newer" "take the tarball of $version"
  echo "$top" >"$unpacked/$top/.manyarms-origin"
  mv -T "$unpacked/$top" "$prefix"
}

link_library() { # what PyRep's extension is linked to; relative, so that the folder can be moved
  [ -e "$prefix/libcoppeliaSim.so.1" ] || run ln -sfn libcoppeliaSim.so "$prefix/libcoppeliaSim.so.1"
}

exports() {
  printf 'export COPPELIASIM_ROOT=%q\n' "$prefix"
  # shellcheck disable=SC2016 # for the shell that reads it
  printf '%s\n' 'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$COPPELIASIM_ROOT"' \
    'export QT_QPA_PLATFORM_PLUGIN_PATH="$COPPELIASIM_ROOT"'
}

unpacked='' top=''
trap '[ -z "$unpacked" ] || rm -rf "$unpacked"' EXIT
trap 'echo "interrupted: run this again, it goes on where it ended" >&2; exit 130' INT TERM

check_machine
if check_prefix; then
  echo "CoppeliaSim $version is there already: $prefix"
else
  own=$archive
  [ "$archive" ] || fetch
  [ "$dry" ] && [ ! -f "$archive" ] || check_archive
  unpack
  [ "$own" ] || run rm -f "$archive"
fi
link_library
echo "PyRep and RLBench need these variables before Python starts:"
exports
[ -z "$bashrc" ] || write_block "$bashrc" CoppeliaSim "$(exports)"
echo "next: scripts/reinstall_rlbench.sh (PyRep must be built against this CoppeliaSim)"
