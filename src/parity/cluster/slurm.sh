# Below this line every script is the same: see docs/how-to/launch-on-a-cluster.md.
#
# A Ray node on every node of the job, the first one as the head; then `parity` beside the head.
# All waits have an end. The exit code is that of `parity`; on the way out the Ray nodes are
# stopped and their files removed, whatever happened.

set -u -o pipefail

say() { printf 'parity-launch: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

steps=()   # process ids of the job steps that hold Ray nodes
hosts=()   # the nodes of those steps, in the same order
starts=()  # how often the Ray node there was started
run=''     # process id of `parity`
waiting='' # process id of the wait for all nodes
stops=0    # how often we were told to stop

on_stop() {
    stops=$((stops + 1))
    if [[ -n $run ]]; then
        say "told to stop: the run ends after its current step, with a checkpoint"
        kill -TERM "$run" 2>/dev/null
    else
        say "told to stop before the run began"
        exit 130
    fi
}

alive() {  # alive PID...: whether any of them is
    local pid
    for pid in "$@"; do
        kill -0 "$pid" 2>/dev/null && return 0
    done
    return 1
}

end() {  # end SECONDS PID...: ask them to end, and kill what is left after so long
    local left=$1
    shift
    kill -TERM "$@" 2>/dev/null
    while ((left-- > 0)) && alive "$@"; do sleep 1; done
    alive "$@" && kill -KILL "$@" 2>/dev/null
    return 0
}

finish() {
    local code=$?
    trap - EXIT
    trap '' TERM INT
    if [[ -n $run ]] && alive "$run"; then end 60 "$run"; fi
    if [[ -n $waiting ]] && alive "$waiting"; then end 10 "$waiting"; fi
    if ((${#steps[@]})); then
        end 30 "${steps[@]}"
        local host
        for host in "${hosts[@]}"; do
            timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" \
                rm -rf -- "$private_dir" </dev/null || say "$private_dir is left on $host"
        done
    fi
    if ((stops > 0 && code == 130)); then
        if [[ $requeue == yes ]]; then
            say "queued again; the next start goes on from the newest checkpoint"
            scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue failed; submit it again"
        else
            say "stopped; to go on: PARITY_RUN_NAME=$run_name sbatch THIS_SCRIPT"
        fi
    fi
    exit "$code"
}

# Run on the head: its first address that other nodes can reach.
address_program='
if [[ -n $1 ]]; then
    ip -4 -o addr show dev "$1" | awk "{ sub(\"/.*\", \"\", \$4); print \$4; exit }"
else
    { getent ahostsv4 "$(hostname)" | awk "{ print \$1 }"; hostname -I | tr " " "\n"; } |
        grep -E "^[0-9]+(\.[0-9]+){3}$" | grep -v -E "^(127|169\.254)\." | head -n 1
fi'

# Run on every node: a folder that only we can read, then Ray in the foreground.
node_program='
private_dir=$1; shift
mkdir -p -m 700 -- "$private_dir" && [[ -O $private_dir ]] ||
    { echo "$private_dir is not ours on $(hostname)" >&2; exit 1; }
exec ray start --block "$@"'

run_node() {  # run_node HOST WORD...: a Ray node there, until its step is ended
    local host=$1
    shift
    srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$cpus_per_node" --nodelist="$host" \
        bash -c "$node_program" ray-node "$private_dir" "$@" "${node_words[@]}" </dev/null &
}

start_node() {
    run_node "$@"
    steps+=("$!")
    hosts+=("$1")
    starts+=(1)
}

# Ray gives a node 30 s to start, which a busy host or file system may not do: nodes other than
# the head are started three times before their end is the job's.
require_nodes() {
    local index code
    for index in "${!steps[@]}"; do
        alive "${steps[index]}" && continue
        wait "${steps[index]}"
        code=$?
        if ((index > 0 && starts[index] < 3)); then
            say "the Ray node on ${hosts[index]} ended with exit code $code; it is started again"
            run_node "${hosts[index]}" --address="$RAY_ADDRESS"
            steps[index]=$!
            starts[index]=$((starts[index] + 1))
            continue
        fi
        fail "the Ray node on ${hosts[index]} ended with exit code $code before the run began;" \
            "what it said is above"
    done
}

[[ -n ${SLURM_JOB_ID:-} && -n ${SLURM_JOB_NODELIST:-} ]] ||
    fail "this is a script for sbatch, and there is no Slurm job here"
private_dir=$temp_dir/parity-$SLURM_JOB_ID
if [[ -z $run_name ]]; then run_name=${PARITY_RUN_NAME:-$run_stem-$SLURM_JOB_ID}; fi
trap finish EXIT
trap on_stop TERM INT

cd -- "$work_dir" || fail "the working directory $work_dir is not there on $(hostname)"
set_up || fail "the lines of --setup failed"
type -P ray parity >/dev/null || fail "ray and parity must be on PATH; give --setup LINE"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#nodes[@]} == num_nodes)) ||
    fail "the job has ${#nodes[@]} nodes, and the run is placed on $num_nodes"

# One token for all of the cluster; without it anybody on the network could run code there.
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 RAY_worker_niceness=0
export PARITY_RUNS_DIR=$runs_dir

address=$(timeout 120 srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    bash -c "$address_program" address "$interface" </dev/null | tail -n 1)
[[ $address =~ ^[0-9.]+$ ]] ||
    fail "${nodes[0]} has no IPv4 address that other nodes can reach; give --interface NAME"
port=$((20000 + 2 * (SLURM_JOB_ID % 5000)))
export RAY_ADDRESS=$address:$port
export no_proxy="${no_proxy:+$no_proxy,}$address" NO_PROXY="${NO_PROXY:+$NO_PROXY,}$address"

say "head on ${nodes[0]} at $RAY_ADDRESS, $num_nodes nodes, run $run_name"
deadline=$((SECONDS + start_timeout_s))
start_node "${nodes[0]}" --head --node-ip-address="$address" --port="$port" \
    --ray-client-server-port=$((port + 1)) --include-dashboard=false --disable-usage-stats \
    --temp-dir="$private_dir/ray"
until timeout 5 bash -c ': </dev/tcp/$0/$1' "$address" "$port" 2>/dev/null; do
    require_nodes
    ((SECONDS < deadline)) ||
        fail "the head on ${nodes[0]} didn't answer at $RAY_ADDRESS within $start_timeout_s s"
    sleep 1
done
for node in "${nodes[@]:1}"; do start_node "$node" --address="$RAY_ADDRESS"; done

parity launch wait --nodes "$num_nodes" --timeout-s $((deadline - SECONDS + 1)) </dev/null &
waiting=$!
while alive "$waiting"; do
    require_nodes
    sleep 1
done
wait "$waiting" || fail "not all of ${nodes[*]} joined within $start_timeout_s s"

if [[ -f $runs_dir/$run_name/run.json ]]; then
    say "going on with $runs_dir/$run_name"
    words=(resume "$runs_dir/$run_name")
else
    words=("${train[@]}")
    if [[ $names_run == yes ]]; then words+=("output.name=$run_name"); fi
fi
parity "${words[@]}" </dev/null &
run=$!
code=127
while :; do
    seen=$stops
    wait "$run"
    status=$?
    ((status == 127)) || code=$status  # 127: its end was told by the wait before
    ((seen == stops)) && break         # a signal breaks a wait off
done
say "parity ended with exit code $code"
exit "$code"
