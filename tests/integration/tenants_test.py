#!/usr/bin/env python3
"""The turns of tenants: held requests, priorities, API keys with quotas, pins. Costed workers, real processes."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import tempfile
import time
import unittest

from cluster import Cluster, Random, cached, quick_profile, run, until

KEYS = """
[tenant.ops]
keys = ["sk-operator-1"]
admin = true
[tenant.small]
keys = ["sk-small-1", "sk-small-2"]
tokens_per_s = 10
burst_tokens = 1000
"""


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Tenants(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.runner = [
            "--runner",
            "costed:" + self.write("quick.toml", quick_profile(prefill_s=200e-6, step_s=2e-3, row_s=0.1e-3)),
        ]

    def write(self, name, text, mode=0o600):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def test_requests_with_one_prefix_that_come_at_once_compute_it_once(self):
        # The first takes seconds, so that the others come while it is computed.
        slow = self.write("slow.toml", quick_profile(prefill_s=1e-3, step_s=2e-3, row_s=0.1e-3))
        with Cluster("2p1d", conductor=["--runner", f"costed:{slow}", "--hold", "20ms"]) as c:
            for seed in range(3, 8):  # on a busy machine one may come when the first has its answer
                answers, waits = self.ask_at_once(c, Random(seed))
                if sorted(map(cached, answers)) == [0, 3200, 3200, 3200] and all(waits):
                    break
            self.assertEqual(sorted(map(cached, answers)), [0, 3200, 3200, 3200])
            held = json.loads(c.verb("why", answers[-1]["id"], "--json")[1])
            self.assertEqual(held["tenant"], "default")
            self.assertTrue(all(w == "turn" or w.startswith("prefix:p") for w in waits), waits)
            waited = next(a["id"] for a in answers if cached(a))
            told = c.verb("why", waited)[1].decode()
            self.assertRegex(told, r"\nhold +[0-9.]+  waited here (for its turn|while p\d computed its prefix)\n")
            text = c.request("GET", "/metrics")[2].decode()
            self.assertIn("mc_held_total", text)
            self.assertIn('mc_tenant_requests_total{', text)

    def ask_at_once(self, c, random):
        """Four answers to prompts of one prefix, and what those with a reused prefix waited for."""
        shared = random.ids(3200)
        prompts = [shared + random.ids(100) for _ in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda ids: c.complete(ids=ids, max_tokens=2), prompts))
        return answers, [c.operate("GET", "/requests/" + a["id"])["held_for"] for a in answers if cached(a)]

    def waiting(self, c):
        """vllm:num_requests_waiting of the conductor, and by reason."""
        lines = c.request("GET", "/metrics")[2].decode().splitlines()
        found = {}
        for line in lines:
            if line.startswith("vllm:num_requests_waiting"):
                reason = re.search(r'reason="(\w+)"', line)
                found[reason.group(1) if reason else "all"] = float(line.rsplit(" ", 1)[1])
        return found

    def test_of_waiting_requests_the_lower_priority_number_goes_first(self):
        # The first one would take a minute: it holds the node until its client goes, when all others wait.
        slow = self.write("slow.toml", quick_profile(prefill_s=5e-3, step_s=2e-3, row_s=0.1e-3))
        with Cluster("1p1d", conductor=["--runner", f"costed:{slow}", "--hold", "20ms"]) as c:
            random = Random(4)
            ask = lambda priority: c.complete(ids=random.ids(100), max_tokens=1, priority=priority)
            first = http.client.HTTPConnection("127.0.0.1", c.url_port, timeout=60)
            body = {"prompt": random.ids(12000), "max_tokens": 1, "ignore_eos": True}
            first.request("POST", "/v1/completions", json.dumps(body).encode())
            until(lambda: c.cluster()["requests_unfinished"] == 1, 60, "the first runs")
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                asked = [pool.submit(ask, 5) for _ in range(2)]
                until(lambda: c.cluster()["held"] == 2, 60, "two wait")
                until(lambda: self.waiting(c)["deferred"] == 2, 60, "the metrics say so")
                waits = self.waiting(c)
                self.assertEqual(waits["all"], waits["deferred"] + waits["capacity"], waits)
                asked.append(pool.submit(ask, -5))
                until(lambda: c.cluster()["held"] == 3, 60, "all wait")
                first.close()
                for one in asked:
                    one.result()
            # The conductor's list has the newest first; the threads of this test may get their answers in any order.
            ended = [c.operate("GET", f"/requests/{r['id']}") for r in c.operate("GET", "/requests")["requests"]]
            self.assertEqual([r["priority"] for r in ended if r["prompt_tokens"] == 100], [5, 5, -5])

    def test_a_key_is_a_tenant_with_a_quota_and_guards_every_path_but_the_probes(self):
        keys = self.write("keys.toml", KEYS)
        with Cluster("1p1d", conductor=[*self.runner, "--api-keys", keys]) as c:
            body = {"prompt": Random(5).ids(900), "max_tokens": 1, "ignore_eos": True}
            until(lambda: c.request("GET", "/health")[0] == 200, 60, "healthy without a key")
            for probe in ("/livez", "/readyz"):
                self.assertEqual(c.request("GET", probe)[0], 200, probe)
            for path in ("/v1/models", "/metrics", "/cluster", "/version"):
                self.assertEqual(c.request("GET", path)[0], 401, path)
            for headers in ({}, bearer("sk-small-3"), {"Authorization": "sk-small-1"}):
                status, _, data = c.request("POST", "/v1/completions", body, headers)
                self.assertEqual((status, json.loads(data)["error"]["type"]), (401, "authentication_error"))
            self.assertEqual(c.request("POST", "/v1/completions", body, bearer("sk-small-1"))[0], 200)
            status, headers, data = c.request("POST", "/v1/completions", body, bearer("sk-small-2"))
            error = json.loads(data)["error"]
            self.assertEqual((status, error["code"]), (429, "tenant_quota"))
            self.assertIn("tenant small has used its 10 tokens/s", error["message"])
            # 800 tokens are missing, less what came in since the first answer.
            self.assertTrue(30 <= int(headers["retry-after"]) <= 81, headers["retry-after"])
            self.assertEqual(headers["x-mc-reason"], "tenant_quota")
            # Another tenant is not held back, and finds nothing of what the first one computed.
            answer = c.request("POST", "/v1/completions", body, bearer("sk-operator-1"))
            self.assertEqual(answer[0], 200)
            self.assertEqual(json.loads(answer[2])["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            status, _, data = c.request("GET", "/cluster", headers=bearer("sk-small-1"))
            error = json.loads(data)["error"]
            self.assertEqual((status, error["code"], error["type"]), (403, "not_admin", "permission_error"))
            url = f"http://127.0.0.1:{c.url_port}"
            code, out, err = run("mc-conductor", "ps", "--url", url, "--api-key", "sk-operator-1", "--json")
            self.assertEqual(code, 0, err)
            tenants = {
                t["tenant"]: t
                for t in json.loads(c.request("GET", "/cluster", headers=bearer("sk-operator-1"))[2])["tenants"]
            }
            self.assertEqual((tenants["small"]["submitted"], tenants["small"]["rejected"]), (2, 1))
            # SIGHUP reads the file again; one that is wrong changes nothing.
            self.write("keys.toml", KEYS.replace("sk-small-2", "sk-small-9"))
            c.processes["conductor"].popen.send_signal(signal.SIGHUP)
            until(lambda: c.request("GET", "/version", headers=bearer("sk-small-9"))[0] == 200, 60, "the new key")
            self.assertEqual(c.request("GET", "/version", headers=bearer("sk-small-2"))[0], 401)
            self.write("keys.toml", "[tenant.x]\n")
            c.processes["conductor"].popen.send_signal(signal.SIGHUP)
            until(lambda: "not reloaded" in c.processes["conductor"].text(), 60, "the log says so")
            self.assertEqual(c.request("GET", "/version", headers=bearer("sk-small-9"))[0], 200)

    def test_the_prompt_of_a_warm_belongs_to_the_tenant_whose_key_is_given(self):
        keys, text = self.write("keys.toml", KEYS), self.write("prompt.txt", "word " * 200)
        key = self.write("key", "sk-operator-1\n")
        with Cluster("1p1d1c", conductor=["--api-keys", keys]) as c:
            code, _, err = run("mc-cache", "warm", "c0", "-f", text, env=c.env)
            self.assertNotEqual(code, 0)
            self.assertIn("send its key with --api-key-file FILE", err)
            code, _, err = run("mc-cache", "warm", "c0", "-f", text, "--api-key-file", key, env=c.env)
            self.assertEqual(code, 0, err)
            for name, held in (("sk-operator-1", True), ("sk-small-1", False)):
                env = dict(c.env, MCT_API_KEY=name)
                code, out, err = run("mc-cache", "lookup", "c0", "-f", text, "--json", env=env)
                self.assertEqual(code, 0 if held else 1, err)
                self.assertEqual(json.loads(out)["held"] > 0, held, name)

    def test_key_files_that_are_wrong_are_refused_by_line_and_ones_others_may_read_by_mode(self):
        for text, what in (
            ("[tenant.a]\nweight = 1\n", "tenant a has no keys"),
            ('[tenant.a]\nkeys = ["short"]\n', "8 to 256"),
            ('[tenant.a]\nkeys = ["sk-00000001"]\nquota = 3\n', "'tenant.a.quota' is not known"),
            ('[tenant.a]\nkeys = ["sk-00000001"]\n[tenant.b]\nkeys = ["sk-00000001"]\n', "is a key of a already"),
            ("x = 1\n", "[tenant.NAME]"),
            ("", "no tenant"),
        ):
            path = self.write("bad.toml", text)
            code, _, err = run("mc-conductor", "--http", "127.0.0.1:0", "--api-keys", path, "--check")
            self.assertEqual(code, 2, err)
            self.assertIn(what, err)
            self.assertIn("MC1006", err)
            self.assertIn("[tenant.NAME]", err)
        path = self.write("open.toml", KEYS, 0o644)
        code, _, err = run("mc-conductor", "--http", "127.0.0.1:0", "--api-keys", path, "--check")
        self.assertNotEqual(code, 0)
        self.assertIn("MC1006", err)

    def test_a_pin_to_a_node_that_is_not_there_is_a_bad_request_that_names_those_that_are(self):
        with Cluster("2p1d", conductor=self.runner) as c:
            began = time.monotonic()
            status, _, answer = c.post(
                "/v1/completions", {"prompt": "hello", "max_tokens": 1, "mc": {"pin": {"prefill": "p9"}}}
            )
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn("p9", answer["error"]["message"])
            self.assertIn("p0, p1", answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], "mc.pin.prefill")
            status, _, answer = c.post("/v1/completions", {"prompt": "hi", "mc": {"pin": {"prefil": "p0"}}})
            self.assertEqual((status, answer["error"]["param"]), (400, "mc.pin.prefil"))
            self.assertEqual(c.verb("drain", "p1")[0], 0)
            status, _, answer = c.post("/v1/completions", {"prompt": "hi", "mc": {"pin": {"prefill": "p1"}}})
            self.assertEqual((status, answer["error"]["code"]), (503, "no_prefill"))
            self.assertIn("p1, which is draining", answer["error"]["message"])
            self.assertLess(time.monotonic() - began, 60)
            self.assertIn("start the missing nodes", c.unmet("--prefill", "3"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
