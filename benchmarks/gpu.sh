#!/usr/bin/env bash
# What only a CUDA device can show, in parts of at most 9 minutes each, the most telling first.
#
#   bash benchmarks/gpu.sh PART [RESULTS]   records go to RESULTS, or to benchmarks/results
#   bash benchmarks/gpu.sh --dry-run        every command in small, uncompiled, on whatever is here
#
# 1 tests, and Atari's modes; 2 more games, the other scripts; 3 what each trick buys, where the
# device's time goes; 4 Breakout to 10 million steps, 3 seeds: part 4 again goes on with them.
# Other people's scripts join where PEERS holds their --peer='NAME=COMMAND' and --peer-sps='REGEX'.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
atari=ppo_atari_envpool fast=ppo_atari_envpool_torchcompile rounds=2 iterations=40 steps=10000000
minutes=8 more="64 128" most=128 dry=
declare -a peers=()
[ -z "${PEERS:-}" ] || eval "peers=($PEERS)"

run() { # a command, and the seconds it took; what fails does not stop the part
  echo "$ $*"
  local begin=$SECONDS
  "$@" || echo "gpu.sh: status $?: $*" >&2
  echo "# $((SECONDS - begin)) s"
}

throughput() { run python benchmarks/throughput.py --results "$results" --iterations $iterations --rounds "$@"; }

part() {
  case $1 in
    1)
      run python -m pytest -q tests -m gpu ${dry:+--collect-only}
      throughput $rounds --variants $atari $atari:no-cuda $fast $fast:compile $fast:cudagraphs \
        $fast:compile+cudagraphs $fast:compile+cudagraphs+bfloat16 "${peers[@]}"
      ;;
    2)
      throughput 1 --num-envs $more --variants $atari $fast:compile+cudagraphs \
        $fast:compile+cudagraphs+bfloat16
      for name in ppo_continuous_action ppo_continuous_action_envpool; do
        throughput 1 --variants $name ${name}_torchcompile:compile \
          ${name}_torchcompile:compile+cudagraphs ${name}_torchcompile:compile+no-cuda
      done
      ;;
    3)
      run python benchmarks/ablation.py --results "$results" --pairs $atari --rounds 1 \
        --iterations $iterations
      run python benchmarks/kernels.py $fast --compile --cudagraphs
      run python benchmarks/kernels.py $fast --compile --cudagraphs --num-envs $most
      ;;
    4)
      run python benchmarks/learning.py --results "$results" --runs-dir "$results/runs" \
        --minutes $minutes --jobs 3 --env-ids Breakout-v5 --seeds 1 2 3 \
        --total-timesteps $steps --variants $fast:compile+cudagraphs
      ;;
    *)
      echo "usage: bash benchmarks/gpu.sh 1|2|3|4 [RESULTS], or --dry-run" >&2
      exit 2
      ;;
  esac
}

if [ "${1:-}" = --dry-run ]; then
  export TORCH_COMPILE_DISABLE=1
  dry=1 rounds=1 iterations=4 steps=4096 minutes=1 more="2 4" most=2
  results=$(mktemp -d)
  trap 'rm -rf "$results"' EXIT
  for number in 1 2 3 4; do
    echo "== part $number"
    part $number
  done
else
  results=${2:-benchmarks/results}
  mkdir -p "$results"
  part "${1:-}"
fi
