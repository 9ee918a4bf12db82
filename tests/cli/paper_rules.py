"""The reference rules of the simulator a second time, told as plainly as it goes,
to hold the program's answers against. Nothing here is fast and nothing is
shared with lib/sim: caches are ordered dictionaries, every decode step walks its batch, the Mersenne Twister is spelt
out.
"""

import collections
import math

BLOCK_TOKENS = 512
TOKEN_BYTES = 327680


def quantile(values, percent):
    """The ceil(qN)-th smallest, in whole numbers so that no rounding moves the rank."""
    ranked = sorted(values)
    return ranked[max(1, -(-percent * len(ranked) // 100)) - 1] if ranked else 0.0


def mean(values):
    return math.fsum(values) / len(values) if values else 0.0


def mt19937_64(seed):
    mask, n, m = (1 << 64) - 1, 312, 156
    state = [seed & mask]
    for i in range(1, n):
        state.append((6364136223846793005 * (state[-1] ^ (state[-1] >> 62)) + i) & mask)
    at = n
    while True:
        if at == n:
            for i in range(n):
                x = (state[i] & 0xFFFFFFFF80000000) | (state[(i + 1) % n] & 0x7FFFFFFF)
                state[i] = state[(i + m) % n] ^ (x >> 1) ^ (0xB5026F5AA96619E9 if x & 1 else 0)
            at = 0
        x = state[at]
        at += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        yield (x ^ (x >> 43)) & mask


class Lru:
    """`capacity` None never evicts."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.blocks = collections.OrderedDict()

    def leading(self, ids):
        count = 0
        while count < len(ids) and ids[count] in self.blocks:
            count += 1
        return count

    def use(self, ids):
        for block in reversed(ids):
            if block in self.blocks:
                self.blocks.move_to_end(block)
                continue
            self.blocks[block] = True
            if self.capacity is not None and len(self.blocks) > self.capacity:
                self.blocks.popitem(last=False)


def cache_hits(trace, capacity):
    """(block hit, token hit) of one LRU cache."""
    cache, blocks, tokens = Lru(capacity), 0, 0
    for r in trace:
        k = cache.leading(r["hash_ids"])
        blocks += k
        tokens += min(BLOCK_TOKENS * k, r["input_length"])
        cache.use(r["hash_ids"])
    return blocks / sum(len(r["hash_ids"]) for r in trace), tokens / sum(r["input_length"] for r in trace)


def prefill_seconds(n, p):
    n, p = float(n), float(p)
    return 0.0428 + 0.11048e-3 * (n - p) + 0.7589e-9 * (n * n - p * p)


def step_seconds(batch, context):
    return 26.16e-3 + 0.143e-3 * batch + 3.47e-8 * context


def choose(policy, rule, theta, bandwidth, n, matches, waits, unfinished, draw):
    """(node, blocks used, transfer seconds) of one request."""
    tok = lambda k: max(0, min(BLOCK_TOKENS * k, n - 1))
    best = max(matches)
    nodes = range(len(matches))
    transfer = lambda i: (tok(best) - tok(matches[i])) * TOKEN_BYTES / bandwidth
    if policy == "random":
        i = draw % len(matches)
        return i, matches[i], 0.0
    if policy == "load-count":
        i = min(nodes, key=lambda i: unfinished[i])
        return i, matches[i], 0.0
    if policy == "load":
        i = min(nodes, key=lambda i: waits[i])
        return i, matches[i], 0.0
    if policy == "affinity":
        i = min((i for i in nodes if matches[i] == best), key=lambda i: waits[i])
        return i, matches[i], 0.0
    if policy == "cache-aware":
        i = min(nodes, key=lambda i: waits[i] + prefill_seconds(n, tok(matches[i])))
        return i, matches[i], 0.0
    assert policy == "kv-centric"
    if rule == "threshold":
        plans = []
        for i in nodes:
            fetch = best > 0 and best > theta * matches[i]
            used, x = (best, transfer(i)) if fetch else (matches[i], 0.0)
            plans.append((waits[i] + x + prefill_seconds(n, tok(used)), used, x))
        i = min(nodes, key=lambda i: plans[i][0])
        return i, plans[i][1], plans[i][2]
    alone = [waits[i] + prefill_seconds(n, tok(matches[i])) for i in nodes]
    fetched = [waits[i] + transfer(i) + prefill_seconds(n, tok(best)) for i in nodes]
    i = min(nodes, key=lambda i: min(alone[i], fetched[i]))
    if best > matches[i] and fetched[i] < alone[i]:
        return i, best, transfer(i)
    return i, matches[i], 0.0


class PrefillNodes:
    def __init__(self, nodes, policy, rule="threshold", theta=1.0, blocks=5859, speed=1.0, bandwidth=87e9, seed=1):
        self.caches = [Lru(blocks) for _ in range(nodes)]
        self.free = [0.0] * nodes
        self.ends = [[] for _ in range(nodes)]
        self.numbers = mt19937_64(seed)
        self.policy, self.rule, self.theta, self.bandwidth = policy, rule, theta, bandwidth

    def plan(self, now, n, ids):
        matches = [cache.leading(ids) for cache in self.caches]
        waits = [max(0.0, f - now) for f in self.free]
        unfinished = [sum(end > now for end in ends) for ends in self.ends]
        draw = next(self.numbers) if self.policy == "random" else 0
        i, used, x = choose(self.policy, self.rule, self.theta, self.bandwidth, n, matches, waits, unfinished, draw)
        tokens = max(0, min(BLOCK_TOKENS * used, n - 1))
        seconds = prefill_seconds(n, tokens)
        end = max(now, self.free[i]) + x + seconds
        fetched = used > matches[i]
        return {"node": i, "end": end, "ttft": end - now, "gpu": seconds, "tokens": tokens, "fetched": fetched}

    def book(self, plan, ids):
        self.free[plan["node"]] = plan["end"]
        self.ends[plan["node"]].append(plan["end"])
        self.caches[plan["node"]].use(ids)


def prefill(trace, nodes, policy, rule="threshold", theta=1.0, blocks=5859, speed=1.0, bandwidth=87e9, seed=1):
    """One record a request: node, end, ttft, gpu, used tokens, fetched."""
    pool = PrefillNodes(nodes, policy, rule, theta, blocks, speed, bandwidth, seed)
    out = []
    for r in trace:
        out.append(pool.plan(r["timestamp"] / 1000 / speed, r["input_length"], r["hash_ids"]))
        pool.book(out[-1], r["hash_ids"])
    return out


class DecodeNode:
    def __init__(self):
        self.running, self.waiting = [], []  # each [request, context, tokens left]
        self.step_end = None
        self.step = 0.0
        self.busy = self.area = 0.0
        self.most = 0

    def load(self):
        everyone = self.running + self.waiting
        return step_seconds(len(everyone), sum(row[1] for row in everyone))

    def begin(self, now):
        self.running += self.waiting
        self.waiting = []
        if not self.running:
            self.step_end = None
            return
        self.step = step_seconds(len(self.running), sum(row[1] for row in self.running))
        self.step_end = now + self.step
        self.busy += self.step
        self.area += self.step * len(self.running)
        self.most = max(self.most, len(self.running))

    def finish(self, gaps):
        now = self.step_end
        for row in self.running:
            gaps[row[0]].append(self.step)
            row[1] += 1
            row[2] -= 1
        self.running = [row for row in self.running if row[2] > 0]
        self.begin(now)


def decode(trace, ends, count):
    """The gaps of every request, and the nodes."""
    nodes = [DecodeNode() for _ in range(count)]
    gaps = [[] for _ in trace]
    for j in sorted(range(len(trace)), key=lambda j: ends[j]):
        now = ends[j]
        for node in nodes:
            while node.step_end is not None and node.step_end <= now:
                node.finish(gaps)
        left = trace[j]["output_length"] - 1
        if left < 1:
            continue
        node = min(nodes, key=lambda node: node.load())
        node.waiting.append([j, trace[j]["input_length"] + 1, left])
        if node.step_end is None:
            node.begin(now)
    for node in nodes:
        while node.step_end is not None:
            node.finish(gaps)
    return gaps, nodes


def overload(trace, prefill_nodes, decode_nodes, admission, ttft_slo, tbt_slo, t_d=20.0, slack=1.0, **options):
    """(fates, plans, gaps) of the requests: 12.5 in one clock."""
    pool = PrefillNodes(prefill_nodes, options.pop("policy"), **options)
    speed = options.get("speed", 1.0)
    nodes = [DecodeNode() for _ in range(decode_nodes)]
    arrived = {}
    gaps = [[] for _ in trace]
    plans, fates, flying = [], [], []

    def run_to(now):
        for node in nodes:
            while node.step_end is not None and node.step_end <= now:
                node.finish(gaps)

    def reaches_decode(end, j, target):
        run_to(end)
        n, node = trace[j]["input_length"], nodes[target]
        left = trace[j]["output_length"] - 1
        if left < 1:
            return
        rows = node.running + node.waiting
        context = sum(row[1] for row in rows) + n
        if admission != "none" and (step_seconds(len(rows) + 1, context) > tbt_slo or context > 1.37e6):
            fates[j] = "rejected_after_prefill"
            return
        node.waiting.append([j, n + 1, left])
        arrived[j] = end
        if node.step_end is None:
            node.begin(end)

    def advance(now):
        while flying and min(flying)[0] <= now:
            first = min(flying)
            flying.remove(first)
            reaches_decode(*first)
        run_to(now)

    for j, r in enumerate(trace):
        now, n = r["timestamp"] / 1000 / speed, r["input_length"]
        advance(now)
        plans.append(pool.plan(now, n, r["hash_ids"]))
        fates.append("served")
        everyone = [node.running + node.waiting for node in nodes]
        if admission != "none" and plans[-1]["ttft"] > ttft_slo:
            fates[j] = "rejected_ttft"
        elif admission == "early":
            if min(step_seconds(len(e) + 1, sum(row[1] for row in e) + n) for e in everyone) > slack * tbt_slo:
                fates[j] = "rejected_decode"
        elif admission == "predict":
            then = now + plans[-1]["ttft"]
            there = [row[1] for e in everyone for row in e if arrived[row[0]] + t_d > then]
            there += [trace[k]["input_length"] for end, k, _ in flying if end <= then < end + t_d]
            rows, context = len(there) + 1, float(sum(there) + n)
            if step_seconds(rows / decode_nodes, context / decode_nodes) > slack * tbt_slo:
                fates[j] = "rejected_decode"
        if fates[j] != "served":
            continue
        pool.book(plans[-1], r["hash_ids"])
        committed = [[trace[k]["input_length"] for _, k, d in flying if d == i] for i in range(decode_nodes)]
        load = lambda i: step_seconds(
            len(everyone[i]) + len(committed[i]) + 1, sum(row[1] for row in everyone[i]) + sum(committed[i]) + n
        )
        flying.append((plans[-1]["end"], j, min(range(decode_nodes), key=load)))
    advance(math.inf)
    return fates, plans, gaps


def longest_mean(gaps):
    return mean(sorted(gaps, reverse=True)[: (len(gaps) + 9) // 10])


def summary(trace, prefill_nodes, decode_nodes, policy, ttft_slo=30.0, tbt_slo=0.1, **options):
    placed = prefill(trace, prefill_nodes, policy, **options)
    ttft = [p["ttft"] for p in placed]
    out = {"requests": len(trace), "mean_ttft_s": mean(ttft)}
    for q in (50, 90, 99):
        out[f"p{q}_ttft_s"] = quantile(ttft, q)
    out["token_hit"] = sum(p["tokens"] for p in placed) / max(1, sum(r["input_length"] for r in trace))
    out["gpu_s_mean"] = mean([p["gpu"] for p in placed])
    out["fetches"] = sum(p["fetched"] for p in placed)
    if decode_nodes:
        gaps, nodes = decode(trace, [p["end"] for p in placed], decode_nodes)
        tbt = [longest_mean(g) for g in gaps]
        seen = [1e3 * t for t, g in zip(tbt, gaps) if g]
        out["mean_tbt_ms"] = mean(seen)
        for q in (50, 90, 99):
            out[f"p{q}_tbt_ms"] = quantile(seen, q)
        out["effective"] = mean([float(a <= ttft_slo and b <= tbt_slo) for a, b in zip(ttft, tbt)])
        out["batch_mean"] = sum(n.area for n in nodes) / max(1e-300, sum(n.busy for n in nodes))
        out["batch_max"] = max(n.most for n in nodes)
    return out
