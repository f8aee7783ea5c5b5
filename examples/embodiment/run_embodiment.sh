#!/usr/bin/env bash
# Train with a config of examples/embodiment/config.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/embodiment/run_embodiment.sh CONFIG [KEY=VALUE…] [--dry-run] [--resume]

CONFIG is a name in examples/embodiment/config or a YAML file; KEY=VALUE changes a setting. What is
printed is also written to logs/<config>-<time>.log.

examples:
  bash examples/embodiment/run_embodiment.sh tabletop_ppo_mlp runner.max_steps=5
  bash examples/embodiment/run_embodiment.sh behavior_ppo_openvlaoft actor.model.model_path=DIR --dry-run
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${1:-} in
  '' | -h | --help)
    usage
    [ $# -gt 0 ] || {
      printf 'configs:\n'
      find "$here/config" -maxdepth 1 -name '*.yaml' -printf '  %f\n' | sed 's/\.yaml$//' | sort
      exit 2
    }
    exit
    ;;
esac
config=$1
shift
if [ ! -f "$config" ]; then
  config=$here/config/${config%.yaml}.yaml
fi
[ -f "$config" ] || {
  echo "error: there is no config $(basename "$config" .yaml); known are:" >&2
  find "$here/config" -maxdepth 1 -name '*.yaml' -printf '  %f\n' | sed 's/\.yaml$//' | sort >&2
  exit 2
}
command -v manyarms >/dev/null || PATH=$here/../../.venv/bin:$PATH
command -v manyarms >/dev/null || {
  echo "error: manyarms is not installed: pip install -e '.[torch,vla,ray,tensorboard]'" >&2
  exit 1
}
# Isaac Sim and CoppeliaSim find their own libraries; one thread a process keeps many simulators out of each other's way.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p logs
log=logs/$(basename "$config" .yaml)-$(date +%Y%m%d-%H%M%S).log
echo "manyarms train $config $*" | tee "$log"
manyarms train "$config" "$@" 2>&1 | tee -a "$log"
