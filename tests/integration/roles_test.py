#!/usr/bin/env python3
"""Roles started by hand: any order, any transport, keys, refusals, drain, ports, signals."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
import unittest

import cluster
from cluster import Cluster, Random, cached, oracle, run, token_ids, until


class Roles(unittest.TestCase):
    def test_workers_may_start_before_the_conductor(self):
        with Cluster() as c:
            for name in ("d0", "c0", "p0"):
                c.start(name, *([] if name == "c0" else ["--dtype", "f32"]))
            c.start("conductor")
            c.wait_nodes()
            ids = Random(1).ids(150)
            self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=8)), oracle(ids, 8))

    def test_nodes_with_little_room_bound_the_context_and_a_prompt_that_fills_it_can_be_scored(self):
        with Cluster("1p1d", conductor=["--kv-mem", "4MiB"]) as c:
            limit = c.get("/v1/models")["data"][0]["max_model_len"]
            self.assertTrue(256 <= limit < 8192, limit)
            ids = Random(11).ids(limit)
            self.assertEqual(c.post("/tokenize", {"prompt": "x"})[2]["max_model_len"], limit)
            for extra in ({"max_tokens": 1}, {"max_tokens": 0, "echo": True}):
                prompt = ids if extra["max_tokens"] else ids + [7]
                status, _, answer = c.post("/v1/completions", {"prompt": prompt, **extra})
                self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), answer)
                wanted = f"maximum context length is {limit} tokens (the nodes' --kv-mem holds no more of its 8192)"
                self.assertIn(f"{wanted}, and the prompt has {len(prompt)}", answer["error"]["message"])
            body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
            status, _, answer = c.post("/v1/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(len(answer["choices"][0]["logprobs"]["token_logprobs"]), limit)
            self.assertEqual(answer["usage"]["completion_tokens"], 0)
            self.assertEqual(c.post("/v1/completions", {"prompt": ids[:-8], "max_tokens": 8})[0], 200)

    def test_check_with_local_asks_one_node_of_each_kind(self):
        words = ["mc-conductor", "--http", "127.0.0.1:0", "--check", "--local", "2p1d1c"]
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, MCT_RUN_DIR=folder)
            code, _, err = run(*words, env=env)
            self.assertEqual((code, err.count("check passed")), (0, 4), err)
            code, _, err = run(*words, "--kv-mem", "100KiB", env=env)
            self.assertEqual(code, 1, err)
            self.assertIn("error MC5003", err)
            self.assertIn("mc-prefill --check ended with exit code 1", err)

    def test_a_conductor_that_returns_knows_the_blocks_again_and_old_workers_serve_on(self):
        with Cluster(roles=["conductor", "p0", "d0"]) as c:
            ids = Random(2).ids(400)
            c.complete(ids=ids, max_tokens=4)
            c.processes["conductor"].kill()
            c.processes["conductor"].stop()
            c.start("conductor")
            c.wait_nodes()
            until(lambda: c.node("p0")["blocks_indexed"] >= 6, 60, "snapshot of p0")
            self.assertEqual(cached(c.complete(ids=ids, max_tokens=4)), 384)

    def test_control_over_tcp_with_keys_serves_and_refuses_a_wrong_key(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = []
            for name in ("right", "wrong"):
                code, out, err = run("mc-conductor", "keygen")
                self.assertEqual(code, 0, err)
                keys.append(os.path.join(folder, name))
                with open(os.open(keys[-1], os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(out)
            with Cluster() as c:
                listen = ["--listen", "tcp://127.0.0.1:0"]
                endpoint = c.start("conductor", *listen, "--auth", keys[0]).ready["control"]
                for name in ("p0", "d0"):
                    c.start(name, "--conductor", endpoint, "--auth", keys[0], "--transport", "tcp", "--dtype", "f32")
                c.wait_nodes()
                ids = Random(3).ids(200)
                self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=6)), oracle(ids, 6))
                stranger = c.start("p9", "--conductor", endpoint, "--auth", keys[1])
                self.assertEqual(stranger.popen.wait(60), 3)
                self.assertIn("MC2103", stranger.tail())
                self.assertIn(f"the keys of {keys[1]}", stranger.tail())
                del c.processes["p9"]
                self.assertEqual(len(c.cluster()["nodes"]), 2)
            os.chmod(keys[0], stat.S_IRUSR | stat.S_IROTH)
            code, _, err = run("mc-prefill", "--conductor", endpoint, "--auth", keys[0])
            self.assertNotEqual(code, 0)
            self.assertIn("MC1006", err)

    def test_a_node_with_other_keys_is_refused_and_both_key_files_are_named(self):
        with Cluster(roles=["conductor"]) as c:
            key = os.path.join(c.dir, "other.key")
            self.assertEqual(c.verb("keygen", "-o", key)[0], 0)
            stranger = c.start("c9", "--auth", key)  # the socket of the conductor is open to it
            self.assertEqual(stranger.popen.wait(60), 3)
            local = os.path.join(c.env["MCT_RUN_DIR"], "local.key")
            why = f"the node has the keys of {key}, the conductor has those of {local}, and the two differ"
            self.assertIn(f"error MC2103 wrong-key: {why}", stranger.tail())
            self.assertIn("on one machine share MCT_RUN_DIR; else give both sides the same --auth", stranger.tail())
            self.assertIn("if the conductor has --auth, give this node its file", stranger.tail())
            del c.processes["c9"]
            until(lambda: f"MC2103: {why}" in c.processes["conductor"].text(), 60, "the refusal in the conductor's log")
            self.assertEqual(c.cluster()["nodes"], [])
            self.assertIn("warn mc-conductor", c.processes["conductor"].text())
            c.start("c0")
            until(lambda: len(c.cluster()["nodes"]) == 1, 60, "a node with the keys of the conductor")

    def test_a_name_that_is_taken_is_reported_before_the_node_gives_up(self):
        for _ in range(5):
            if self.second_gives_up():
                return
        self.fail("5 times the second node took the name of a silent one, or it had ended when the test looked")

    def second_gives_up(self):
        """False: a busy host kept the first node silent for two heartbeats, or this test from looking in time."""
        with Cluster(roles=["conductor", "c0"]) as c:
            second = c.processes["second"] = c.spawn(["mc-cache", "--name", "c0", "--http", "127.0.0.1:0"])
            said = "the conductor refuses this node, which goes on asking"
            replaced = "replaced by a new process of the same name"
            conductor = c.processes["conductor"]
            until(lambda: said in second.text() or replaced in conductor.text(), 60, "the warning")
            alive = second.popen.poll() is None
            until(lambda: second.popen.poll() is not None or replaced in conductor.text(), 60, "the second node's end")
            if replaced in conductor.text():
                return False
            if not alive:  # the second one had its answers late, and this test looked late
                return False
            self.assertIn("MC2108 name-taken: a live node is called c0 already", second.text())
            self.assertEqual(second.popen.wait(60), 3)
            self.assertIn("error MC2108", second.tail())
            del c.processes["second"]
            self.assertEqual(conductor.text().count("node refused"), 1)
            return True

    def test_rotated_keys_are_read_on_sighup_and_the_cluster_serves_on(self):
        def write_keys(path):
            code, out, err = run("mc-conductor", "keygen")
            self.assertEqual(code, 0, err)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.write(out)

        with tempfile.TemporaryDirectory() as folder:
            keys, old = os.path.join(folder, "cluster.key"), os.path.join(folder, "old.key")
            write_keys(keys)
            shutil.copy(keys, old)
            with Cluster() as c:
                listen = ["--listen", "tcp://127.0.0.1:0"]
                endpoint = c.start("conductor", *listen, "--auth", keys).ready["control"]
                for name in ("p0", "d0"):
                    c.start(name, "--conductor", endpoint, "--auth", keys, "--transport", "tcp", "--dtype", "f32")
                c.wait_nodes()
                c.processes["p0"].popen.send_signal(signal.SIGHUP)  # the same keys: a log rotation
                write_keys(keys)
                for name in ("p0", "conductor", "d0"):
                    c.processes[name].popen.send_signal(signal.SIGHUP)
                    until(lambda: "keys reloaded" in c.processes[name].text(), 60, f"{name} reads its keys")
                # Both nodes may still be listed by their links of before: signs of life since then come by new ones.
                c.wait_nodes()
                c.wait_quiet()
                ids = Random(4).ids(200)
                self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=6)), oracle(ids, 6))
                late = c.start("p9", "--conductor", endpoint, "--auth", old)
                self.assertEqual(late.popen.wait(60), 3)
                self.assertIn("MC2103", late.tail())
                del c.processes["p9"]
                self.assertEqual(c.processes["p0"].text().count("keys reloaded"), 1)

    def test_listening_beyond_loopback_without_keys_is_refused(self):
        for words in (
            ["mc-conductor", "--listen", "tcp://0.0.0.0:0"],
            ["mc-conductor", "--http", "0.0.0.0:0"],
            ["mc-prefill", "--bind", "0.0.0.0"],
        ):
            with self.subTest(words=words):
                code, _, err = run(*words)
                self.assertEqual(code, 2, err)
                self.assertIn("MC1005", err)

    def test_a_node_on_every_address_of_its_host_is_told_to_name_one(self):
        for address in ("0.0.0.0", "::"):
            with self.subTest(address=address):
                code, _, err = run("mc-cache", "--bind", address, "--insecure", "all", "--http", "127.0.0.1:0")
                self.assertEqual(code, 2, err)
                self.assertIn("MC1002", err)
                self.assertIn("where: --bind", err)

    def test_two_workers_of_other_blocks_are_refused_with_both_values(self):
        for flags, words in (
            (["--block-tokens", "128"], ("block_tokens", "64", "128")),
            (["--kv-dtype", "fp8_e4m3"], ("kv_dtype", "bf16", "fp8_e4m3")),
        ):
            with Cluster(roles=["conductor"]) as c:
                c.start("p0", "--attention", "full")
                c.wait_nodes()
                other = c.start("d0", "--attention", "full", *flags)
                self.assertEqual(other.popen.wait(60), 3)
                for word in ("MC2104", "compared and equal", *words):
                    self.assertIn(word, other.tail())
                del c.processes["d0"]

    def test_a_worker_with_another_model_than_the_conductors_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "other")
            code, _, err = run(
                "mc-bench", "mkmodel", "--arch", "qwen3", "--layers", "2", "--hidden", "64", "-o", model
            )
            self.assertEqual(code, 0, err)
            with Cluster(roles=["conductor"]) as c:
                other = c.start("p0", "-m", model)
                self.assertEqual(other.popen.wait(60), 3)
                for word in ("MC2109", "mc-tiny", "other"):
                    self.assertIn(word, other.tail())
                del c.processes["p0"]

    def test_a_second_node_of_a_live_name_gives_up_by_name(self):
        with Cluster(roles=["conductor", "c0"]) as c:
            # The first one keeps its name while it is heard; on a crowded machine it may be silent for so long that the
            # second takes the name over. Then it is the first that gives up.
            both = [c.processes["c0"], c.start("c0")]
            until(lambda: any(p.popen.poll() is not None for p in both), 60, "one of them gives up")
            ended, lives = sorted(both, key=lambda p: p.popen.poll() is None)
            self.assertEqual(ended.popen.wait(60), 3)
            self.assertIn("MC2108", ended.tail())
            self.assertIsNone(lives.popen.poll())
            c.processes["c0"] = lives

    def test_an_explicit_port_that_is_taken_is_an_error_and_a_default_one_moves_up(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, _, err = run("mc-conductor", "--http", f"127.0.0.1:{port}")
            self.assertEqual(code, 1)
            self.assertIn("MC5001", err)
            self.assertIn(str(port), err)
        # Two conductors by default take two ports, wherever the first free ones are.
        ports = []
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                c = stack.enter_context(Cluster())
                c.processes["conductor"] = c.spawn(["mc-conductor", "--json"])
                ports.append(int(c.processes["conductor"].wait_ready()["http"].rsplit(":", 1)[1]))
                said = lambda: "the default port is in use" in c.processes["conductor"].text()
                if ports[-1] == 8000:
                    self.assertFalse(said())
                else:
                    until(said, 60, "the log says that the port moved")
        self.assertEqual(len(set(ports)), 2)
        self.assertTrue(all(8000 <= port <= 8099 for port in ports), ports)

    def test_fixed_ports_are_those_of_control_and_data_and_a_taken_one_is_refused(self):
        with contextlib.ExitStack() as stack:
            for first in range(21000, 21300, 3):  # below the ports that the kernel gives to connections
                sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
                try:
                    for n, one in enumerate(sockets):
                        one.bind(("127.0.0.1", first + n))
                    break
                except OSError:
                    continue
            words = ["mc-cache", "--dram", "16MiB", "--transport", "tcp", "--insecure", "data", "--ports", str(first)]
            sockets[0].close()
            code, _, err = run(*words, "--http", "127.0.0.1:0", "--check")
            self.assertEqual(code, 1)
            self.assertIn(f"127.0.0.1:{first + 1} is in use", err)
            self.assertIn("MC5001", err)
        with Cluster() as c:
            control = c.start("conductor", "--listen", "tcp://127.0.0.1:0").ready["control"]
            words += ["--conductor", control, "--http", "127.0.0.1:0", "--json"]
            c.processes["c0"] = c.spawn(words)
            self.assertEqual(c.processes["c0"].wait_ready()["control"], f"tcp://127.0.0.1:{first}")
            self.assertIn(f"tcp://127.0.0.1:{first + 1}", c.processes["c0"].text())
        for value in ("0", "65534", "7700,7701"):
            code, _, err = run("mc-cache", "--ports", value)
            self.assertEqual(code, 2, err)
            self.assertIn("--ports", err)

    def test_check_opens_everything_and_ends(self):
        with Cluster() as c:
            for name in ("mc-conductor", "mc-prefill", "mc-decode", "mc-cache"):
                with self.subTest(program=name):
                    code, out, err = run(name, "--check", env=c.env)
                    self.assertEqual((code, out), (0, b""), err)
                    self.assertIn("check passed", err)
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                code, _, err = run("mc-cache", "--check", "--http", f"127.0.0.1:{port}", env=c.env)
                self.assertEqual(code, 1)
                self.assertIn("MC5001", err)
            code, _, err = run("mc-decode", "--check", "--kv-mem", "900TiB", env=c.env)
            self.assertEqual(code, 1)
            self.assertIn("MC5003", err)

    def test_sigusr1_writes_the_state_to_the_log_and_nothing_ends(self):
        with Cluster(roles=["conductor", "p0", "d0", "c0"]) as c:
            dumps = {"conductor": "unfinished", "p0": "pages_free", "d0": "pages_free", "c0": "leases"}
            for name, words in dumps.items():
                process = c.processes[name]
                process.popen.send_signal(signal.SIGUSR1)
                until(lambda: words in process.text(), 60, f"dump of {name}")
            self.assertEqual(len(token_ids(c.complete(ids=[5, 6, 7], max_tokens=3))), 3)

    def test_drain_takes_no_new_requests_and_sigterm_ends_with_zero(self):
        with Cluster(roles=["conductor", "p0", "p1", "d0"]) as c:
            self.assertEqual(c.verb("drain", "p1")[0], 0)
            until(lambda: c.node("p1")["state"] == "drain", 60, "p1 drains")
            for i in range(4):
                self.assertEqual(c.complete(ids=Random(i).ids(70), max_tokens=2)["mc"]["prefill_node"], "p0")
            self.assertEqual(c.verb("undrain", "p1")[0], 0)
            code, _, err = c.verb("drain", "p7")
            self.assertEqual(code, 1)
            self.assertIn("error MC4007 not-found: no node is called p7; there are: d0, p0, p1\n", err)
            self.assertRegex(err, r"next: +name a node as mc-conductor ps lists it;")
            self.assertEqual(c.processes["p1"].stop(), 0)
            del c.processes["p1"]
            until(lambda: len(c.cluster()["nodes"]) == 2, 60, "p1 left")
            missing = "MC2112 nodes-missing: ready: 1 prefill, 1 decode, 0 cache; wanted 2, 1, 0"
            self.assertIn(missing, c.unmet("--prefill", "2"))
            self.assertEqual(c.verb("wait", "--prefill", "1", "--timeout", "60s")[0], 0)

    def test_explain_names_the_winner_and_what_it_would_reuse(self):
        with Cluster(roles=["conductor", "p0", "p1", "d0"], measures=True) as c:
            ids = Random(5).ids(300)
            c.complete(ids=ids, max_tokens=2, mc={"pin": {"prefill": "p1"}})
            until(lambda: c.node("p1")["blocks_indexed"] >= 4, 60, "blocks of p1")
            body = b'{"prompt": %s, "max_tokens": 2, "user": "messages"}' % str(ids).encode()  # and yet no chat
            code, out, err = c.verb("explain", "-f", "-", "--json", stdin=body)
            self.assertEqual(code, 0, err)
            told = json.loads(out)
            self.assertTrue(told["admit"])
            self.assertEqual(told["reusable_blocks"], 4)
            match = {r["node"]: r["match_blocks"] for r in told["candidates"]}
            self.assertEqual(match["p1"], 4)
            self.assertEqual([r["verdict"] for r in told["candidates"]].count("winner"), 1)
            self.assertEqual({r["node"]: r["unmeasured"] for r in told["candidates"]}, {"p0": True, "p1": False})
            code, out, _ = c.verb("explain", "-f", "-", stdin=body)
            self.assertIn(b"VERDICT", out)
            self.assertRegex(out.decode(), r"(?m)^p0 .*\d\* ")
            self.assertNotRegex(out.decode(), r"(?m)^p1 .*\d\* ")
            self.assertRegex(c.verb("why", "--last")[1].decode(), r"(?m)^p1 .*\d\*$")

    def test_the_conductor_out_of_reach_is_exit_3(self):
        with socket.socket() as taken:  # bound, so that nobody else listens there
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            code, _, err = run("mc-conductor", "ps", "--url", url)
            self.assertEqual(code, 3)
            self.assertIn("MC2101", err)

    def test_the_children_of_a_killed_conductor_die_with_it(self):
        with Cluster("1p1d1c") as c:
            parent = c.processes["conductor"].popen.pid
            pids = [int(p) for p in os.popen(f"pgrep -P {parent}").read().split()]
            self.assertEqual(len(pids), 3)
            c.processes["conductor"].kill()
            until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 60, "children ended")

    def test_interrupting_a_local_cluster_ends_its_children(self):
        with Cluster("1p1d") as c:
            pids = [int(p) for p in os.popen(f"pgrep -P {c.processes['conductor'].popen.pid}").read().split()]
            self.assertEqual(len(pids), 2)
            c.processes["conductor"].popen.send_signal(signal.SIGINT)
            self.assertEqual(c.processes["conductor"].popen.wait(60), 130)
            for pid in pids:
                self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_a_second_interrupt_ends_a_stream_with_an_error_and_the_nodes_do_not_go_on_with_it(self):
        body = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
        took = []
        while len(took) < 5:  # a busy machine may take its time once
            with Cluster("1p1d") as c:
                stream = c.stream("/v1/completions", body)
                next(stream)
                conductor = c.processes["conductor"]
                conductor.popen.send_signal(signal.SIGINT)
                until(lambda: "draining; another signal stops now" in conductor.text(), 60, "its line")
                began = time.monotonic()
                conductor.popen.send_signal(signal.SIGINT)
                events = []
                with contextlib.suppress(http.client.HTTPException, OSError):  # the answer has no end
                    for event in stream:
                        events.append(event)
                self.assertEqual(json.loads(events[-1])["error"]["code"], "draining")
                self.assertEqual(conductor.popen.wait(60), 130)
                took.append(time.monotonic() - began)
            if took[-1] < 2:  # a node misses the conductor after 3 s
                return
        self.fail(f"the cluster took {took} s to stop")


if __name__ == "__main__":
    unittest.main(verbosity=2)
