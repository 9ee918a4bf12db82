"""Serving over rdma://, in the machine with soft-RoCE: the shell lines of one cluster, which run inside the machine,
and the checks of what the cluster printed. programs_test runs both.

A prefill and a decode node exchange KV by RDMA READ, and the text is that of a single process in the same machine. So
is the text of a prefill node whose reads take longer than the lease on what they read, and which renews the lease. A
prefill node that fills up finds out by RDMA READs of the cache node's table what the cache node has. Another prefill
node fetches a prefix from the cache node, and the cache node is killed while a third one reads from it."""

import json
import unittest

import cluster
import machine

# p0 and p1 have room for 13 blocks, and p2 reads so slowly that a prefix of 5 blocks takes it some seconds. Every
# transfer of s0 ends later than a lease does. s0 and d0 have the devices and the carrier of leases that the programs
# choose: devices of both pairs, and control. The other nodes have one device and lease over channels.
SERVE = r"""
set -eu
export MCT_RUN_DIR=/tmp/run
mkdir -m 700 /tmp/run
NODE="--transport rdma --connect-timeout 30s --lease-time 4s"
FREE="-m /mc/model --dtype f32 --block-tokens 16 --cost /mc/cost --fetch-timeout 30s $NODE"
WORKER="$FREE --rdma-devices rxe1 --lease-by auto"
SMALL="--kv-mem 176KiB"
started=
trap 'kill -KILL $started 2>/dev/null || true' EXIT # which frees the machine's devices
begin() { # program and flags
  "$@" >/dev/null 2>>/tmp/log &
  started="$started $!"
}
ready() { # prefill nodes
  mc-conductor wait --prefill $1 --decode 1 --cache $caches --timeout 300s >&2 || { cat /tmp/log; exit 1; }
}
without_cache=false # whether answers neither use nor keep blocks
ask() { # prompt, prefill node
  wget -q -O - --post-data "{\"prompt\": [$1], \"max_tokens\": 6, \"temperature\": 0, \"ignore_eos\": true,
    \"return_token_ids\": true, \"mc\": {\"explain\": true, \"no_cache\": $without_cache,
    \"pin\": {\"prefill\": \"$2\", \"decode\": \"d0\"}}}" \
    http://127.0.0.1:8000/v1/completions
}
answer() { # word, prompt, prefill node. A starved machine misses heartbeats, so a client may have to ask again.
  for try in $(seq 20); do
    said=$(ask $2 $3) && printf '%s\n' "$1 $said" && return # echo would take the escapes of JSON for its own
    sleep 0.5
    ready $nodes
  done
  cat /tmp/log
  return 1
}
metrics() { # port
  wget -q -O - http://127.0.0.1:$1/metrics
}
metric() { # port, family, label: the sum of its samples
  metrics $1 | awk -v family="$2{" -v label="$3" \
    'index($0, family) == 1 && index($0, label) { sum += $NF } END { printf "%d\n", sum }'
}
until_above() { # value, port, family, label
  for try in $(seq 600); do
    [ "$(metric $2 $3 $4)" -le $1 ] || return 0
    sleep 0.3 # a look takes the emulated machine a tenth of a second
  done
  echo "within 600 looks $3 of port $2 with $4 did not exceed $1" >&2
  cat /tmp/log
  return 1
}
forget() { # nodes: their blocks
  for node in $*; do mc-cache evict $node --all >&2; done
}

begin mc-conductor -m /mc/model --fetch-rule threshold --http 127.0.0.1:8000
begin mc-prefill $WORKER $SMALL --name p0 --http 127.0.0.1:8001
p0=$!
begin mc-decode $FREE --kv-mem 16MiB --name d0 --http 127.0.0.1:8002
begin mc-cache $NODE --rdma-devices rxe0 --lease-by auto --name c0 --dram 16MiB --values 0B --http 127.0.0.1:8003
c0=$!
nodes=1
caches=1
ready 1
last=${1##* }
printf 'MC-ORACLE '
mc-prefill once -m /mc/model --dtype f32 --block-tokens 16 --prompt-ids $last -n 6 --temperature 0 --ignore-eos --json |
  tail -n 1
without_cache=true
for ids in $1; do answer MC-COLD $ids p0; done
without_cache=false
for turn in 1 2; do # a block that is evicted before it is read is lost, and comes back in the second turn
  for ids in $1; do answer MC-FILL-$turn $ids p0; done
done
until_above 4 8003 mc_kv_blocks 'state="cached"'
metrics 8001 | sed -n 's/^mc_block_lookups_total/MC-P0 &/p'
metrics 8002 | sed -n 's/^mc_xfer_bytes_total/MC-D0 &/p'
begin mc-prefill $WORKER $SMALL --name p1 --http 127.0.0.1:8004
begin mc-prefill $FREE --kv-mem 16MiB --name s0 --http 127.0.0.1:8006 --transfer-faults delay=1:6s
s0=$!
nodes=3
ready 3
for try in 1 2 3 4 5; do # in a starved machine the lease may be renewed too late, or s0 may get the request twice
  renewed=$(answer MC-RENEWED $last s0)
  case $renewed in *'"cached_remote_tokens":32,'*'"fallback":""'*) break ;; esac
  forget s0
done
printf '%s\n' "$renewed"
metrics 8006 | sed -n 's/^mc_lease_requests_total/MC-S0 &/p'
for port in 8001 8003; do # p0 may hold the blocks as well as c0
  metrics $port | sed -n 's/^mc_lease_renewals_total/MC-RENEWALS &/p'
done
for device in rxe0 rxe2; do
  printf 'MC-PACKETS %s %s\n' $device $(cat /sys/class/infiniband/$device/ports/1/hw_counters/sent_pkts)
done
kill -KILL $p0 $s0
wait $p0 $s0 2>/dev/null || true
forget d0
nodes=1
for ids in $1; do answer MC-FETCHED $ids p1; done
for ids in $1; do answer MC-AGAIN $ids p1; done
until_above 0 8004 mc_block_lookups_total 'event="read"'
metrics 8004 | sed -n 's/^mc_block_lookups_total\|^mc_xfer_bytes_total/MC-P1 &/p'
metrics 8003 | sed -n 's/^mc_block_lookups_total/MC-C0 &/p'
begin mc-prefill $WORKER --kv-mem 16MiB --name p2 --http 127.0.0.1:8005 --rdma-pace 10KiB/s
nodes=2
ready 2
forget d0 p1
caches=0
answer MC-LATE ${1%% *} p2 >/tmp/late &
late=$!
until_above 0 8003 mc_kv_blocks 'state="leased"'
kill -KILL $c0
metrics 8005 | sed -n 's/^mc_xfer_bytes_total/MC-P2 &/p'
wait $late
cat /tmp/late
sed -n 's/^/MC-LOG /p' /tmp/log | grep 'data connection up'
"""

# The first prompt has five full blocks, each of the others two.
LAYERS = 2  # of the model (machine.SHAPE)
BLOCK = 16  # tokens of a block
PROMPTS = [cluster.Random(30 + i).ids(83 if i == 0 else 35, vocab=machine.VOCAB) for i in range(5)]
LISTS = " ".join(",".join(map(str, ids)) for ids in PROMPTS)


class Serving(unittest.TestCase):
    def setUp(self):
        self.assertEqual(machine.FOUND.get("MC-SERVED"), ["0"], machine.FOUND["said"])

    def answers(self, word):
        return [json.loads(text) for text in machine.FOUND[word]]

    def texts(self, word):
        return [cluster.token_ids(answer) for answer in self.answers(word)]

    def sample(self, word, *labels):
        lines = [line for line in machine.FOUND.get(word, []) if all(label in line for label in labels)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def test_text_served_over_rdma_is_the_text_of_one_process(self):
        self.assertEqual([oracle["output_ids"] for oracle in self.answers("MC-ORACLE")], self.texts("MC-COLD")[-1:])
        self.assertTrue(all("rdma" in line for line in machine.FOUND["MC-LOG"]), machine.FOUND["MC-LOG"])
        read = self.sample("MC-D0", 'direction="in"', 'transport="rdma"')
        self.assertGreater(read, 0, machine.FOUND["MC-D0"])

    def test_a_node_whose_reads_outlast_their_lease_renews_it_and_gives_the_same_text(self):
        (late,) = self.answers("MC-RENEWED")
        self.assertEqual([cluster.token_ids(late)], self.texts("MC-COLD")[-1:])
        self.assertEqual(late["mc"]["fallback"], "", late["mc"])
        self.assertEqual(late["mc"]["cached_remote_tokens"], 2 * BLOCK, late["mc"])
        self.assertGreater(self.sample("MC-S0", 'carrier="control"'), 0, machine.FOUND["MC-S0"])
        self.assertEqual(self.sample("MC-S0", 'carrier="channel"'), 0, machine.FOUND["MC-S0"])
        self.assertGreater(self.sample("MC-RENEWALS", 'event="granted"'), 0, machine.FOUND["MC-RENEWALS"])

    def test_nodes_that_choose_their_devices_connect_over_both_pairs(self):
        packets = dict(line.split() for line in machine.FOUND["MC-PACKETS"])
        self.assertGreater(int(packets["rxe0"]), 0, packets)
        self.assertGreater(int(packets["rxe2"]), 0, packets)

    def test_every_text_is_that_of_the_cold_run_whatever_the_blocks_came_from(self):
        cold = self.texts("MC-COLD")
        self.assertEqual(len(cold), len(PROMPTS))
        self.assertEqual(len({tuple(text) for text in cold}), len(PROMPTS), cold)  # else equal texts would mean little
        self.assertEqual([cluster.cached(answer) for answer in self.answers("MC-COLD")], [0] * len(PROMPTS))
        for word in ("MC-FILL-1", "MC-FILL-2", "MC-FETCHED", "MC-AGAIN"):
            self.assertEqual(self.texts(word), cold, word)
        self.assertEqual(self.texts("MC-LATE"), cold[:1])

    def test_a_prefix_whose_first_node_is_gone_is_read_from_the_cache_node(self):
        # An attempt that a starved machine gave up has left its blocks at p1 for the next one.
        found = [answer["mc"] for answer in self.answers("MC-FETCHED")]
        whole = ({"c0": 5 * BLOCK}, {"c0": 2 * BLOCK})
        fetched = [mc for mc in found if mc["cached_from"] in whole and mc["fallback"] == ""]
        self.assertTrue(fetched, found)
        read = self.sample("MC-P1", "mc_xfer_bytes_total", 'transport="rdma"', 'direction="in"', 'peer_role="cache"')
        self.assertGreaterEqual(read, 2 * LAYERS * 2 * BLOCK * 32 * 4)  # K and V of two blocks

    def test_nodes_that_fill_up_read_the_table_of_the_cache_node(self):
        for node in ("MC-P0", "MC-P1"):
            self.assertGreater(self.sample(node, 'event="read"'), 0, machine.FOUND[node])
        # A starved machine may give up a read after 2 s, and the lookup is a call then.
        calls = self.sample("MC-C0", 'event="served"')
        reads = self.sample("MC-P0", 'event="read"') + self.sample("MC-P1", 'event="read"')
        self.assertGreater(reads, calls, machine.FOUND["MC-C0"])

    def test_the_death_of_the_cache_node_in_the_middle_of_a_read_costs_a_computation_alone(self):
        late = self.answers("MC-LATE")[0]["mc"]
        self.assertNotEqual(late["fallback"], "", late)
        self.assertLess(late["cached_remote_tokens"], 5 * BLOCK, late)
        self.assertTrue(all("rdma" in line for line in machine.FOUND["MC-LOG"]), machine.FOUND["MC-LOG"])
