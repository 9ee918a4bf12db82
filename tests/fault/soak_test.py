#!/usr/bin/env python3
"""Many requests: resident memory stays flat and nothing leaks."""

import os
import threading
import unittest

from cluster import Cluster, Random, count, token_ids

REQUESTS = count(200, 5000)


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


class Soak(unittest.TestCase):
    def test_memory_is_flat_over_many_requests(self):
        roles = ["conductor", "c0", "p0", "d0"]
        with Cluster(roles=roles, measures=True) as c:
            done, lock = [0], threading.Lock()

            def work(total):
                while True:
                    with lock:
                        if done[0] >= total:
                            return
                        done[0] += 1
                        n = done[0]
                    random = Random(n)
                    ids = Random(random.below(40)).ids(20 + random.below(300)) + random.ids(5)
                    assert len(token_ids(c.complete(ids=ids, max_tokens=1 + random.below(8)))) > 0

            def run(total):
                threads = [threading.Thread(target=work, args=(total,)) for _ in range(8)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join(1800)

            run(REQUESTS // 4)  # pools, caches and allocators warm up
            before = {name: resident_kib(c.processes[name].popen.pid) for name in roles}
            run(REQUESTS)
            c.wait_quiet()
            after = {name: resident_kib(c.processes[name].popen.pid) for name in roles}
            print(f"{REQUESTS} requests, anonymous resident KiB:", {n: (before[n], after[n]) for n in roles})
            for name in roles:
                self.assertLess(after[name] - before[name], 16 * 1024, f"{name} grew")
            self.assertEqual(done[0], REQUESTS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
