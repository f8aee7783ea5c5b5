#!/usr/bin/env bash
# Run a command on all nodes of a SLURM allocation: a Ray head on the first, workers on the others, then the command.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: sbatch --nodes 4 --ntasks-per-node 1 scripts/slurm_ray.sh [--dry-run] COMMAND…

for example: … scripts/slurm_ray.sh manyarms train CONFIG.yaml cluster.num_nodes=4 --resume

Starts Ray on every node of the allocation, waits until all are there, runs COMMAND on the first and stops Ray.
Every node needs the same environment at the same path; log_path has to be on a file system that all share.

  --dry-run    say what would be done
  RAY_PORT     where nodes meet; default: 6379
  RAY_OPTIONS  further options of `ray start`, such as "--object-store-memory=20000000000"
HELP
}

fail() {
  echo "slurm_ray: $*" >&2
  exit 1
}

say_or_do() {
  if [ "$dry_run" = yes ]; then echo "would run: $*"; else "$@"; fi
}

# A step of its own on one node, beside the others; it lives until it is told to stop.
on_node() {
  local node=$1
  shift
  if [ "$dry_run" = yes ]; then
    echo "would run on $node: $*"
    return
  fi
  srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" "$@" &
  steps+=("$!")
}

# What `ray status` counts as active or idle; 0 before there is a Ray.
living_nodes() {
  ray status 2>/dev/null | awk '
    /^(Active|Idle):/ { counting = 1; next }
    /^[^ ]/ { counting = 0 }
    counting && $1 ~ /^[0-9]+$/ { count += $1 }
    END { print count + 0 }'
}

stop() {
  [ "${#steps[@]}" -eq 0 ] || kill "${steps[@]}" 2>/dev/null || true
  wait || true
}

dry_run=no
steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry_run=yes ;;
    -h | --help) usage && exit ;;
    -*) fail "there is no option $1; see --help" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || fail "no command is given; see --help"
[ -n "${SLURM_JOB_NODELIST:-}" ] || fail "this is no SLURM allocation: run it with sbatch, or inside salloc"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=${RAY_PORT:-6379}
read -r -a options <<<"${RAY_OPTIONS:-}"
command -v ray >/dev/null || [ "$dry_run" = yes ] || fail "there is no ray on the path: pip install 'manyarms[ray]'"

trap stop EXIT
on_node "$head" ray start --head --port="$port" --block --disable-usage-stats "${options[@]}"
for node in "${nodes[@]:1}"; do
  on_node "$node" ray start --address="$head:$port" --block --disable-usage-stats "${options[@]}"
done
if [ "$dry_run" = no ]; then
  export RAY_ADDRESS=$head:$port
  for _ in $(seq 150); do
    living=$(living_nodes) || true
    [ "$living" -ge "${#nodes[@]}" ] && break
    sleep 2
  done
  [ "$living" -ge "${#nodes[@]}" ] ||
    fail "$living of ${#nodes[@]} nodes came up within 5 minutes; look at what their steps have said above"
fi
say_or_do srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" --export="ALL,RAY_ADDRESS=$head:$port" "$@"
