#!/usr/bin/env bash
#SBATCH --job-name=fedraa
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
# Start one Ray node on each Slurm node, and run a command of fedraa that uses all of them:
#   sbatch deploy/slurm.sh run --workers 24 --clients 100 --updates 2000 --out runs/slurm
# Activate the virtual environment before you call sbatch. All nodes must share the file system with this environment
# and with the folder in which you call sbatch.
set -euo pipefail

export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
export RAY_AUTH_TOKEN
# Jobs may share a node, so each job has its own ports. At 0, Ray chooses a free port.
port=$((6000 + SLURM_JOB_ID % 3000))
client_port=$((port + 20000))
node_options=(
  --block
  --num-cpus="${SLURM_CPUS_PER_TASK:-1}"
  --dashboard-agent-listen-port=0
  --min-worker-port=0
  --max-worker-port=0
)

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | cut -d' ' -f1)

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT
srun --nodes=1 --ntasks=1 --overlap -w "$head" \
  ray start --head --node-ip-address="$address" --port="$port" --ray-client-server-port="$client_port" \
  --include-dashboard=false "${node_options[@]}" &
pids+=($!)
until python -c "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)" \
  "$address" "$port" 2>/dev/null; do
  kill -0 "${pids[0]}"
  sleep 1
done
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --overlap -w "$node" \
    ray start --address="$address:$port" "${node_options[@]}" &
  pids+=($!)
done

srun --nodes=1 --ntasks=1 --overlap -w "$head" env RAY_ADDRESS="$address:$port" python -m fedraa "$@"
