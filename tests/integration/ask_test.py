#!/usr/bin/env python3
"""Prompts that operators ask of one prefill node alone: mc-prefill ask and POST /prefill."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import unittest

from cluster import Cluster, Random, SocketConnection, oracle, program, quick_profile, run, token_ids, until


def ask(c, node, ids, *flags):
    """The JSON answer of one node to a prompt."""
    words = ["ask", node, "--prompt-ids", ",".join(map(str, ids)), "--json", *flags]
    code, out, err = run("mc-prefill", *words, env=c.env)
    assert code == 0, err
    return json.loads(out)


def refused(c, node, ids, *flags):
    """(exit code, error) of a prompt that the node does not take."""
    words = ["ask", node, "--prompt-ids", ",".join(map(str, ids)), *flags]
    code, out, err = run("mc-prefill", *words, env=c.env)
    assert out == b"", out
    return code, err


def socket_of(c):
    """The pages of the one worker that runs, which has no name yet."""

    def only():
        names = [n for n in os.listdir(c.env["MCT_RUN_DIR"]) if n.startswith("node-") and n.endswith(".http")]
        return names[0] if len(names) == 1 else None

    path = os.path.join(c.env["MCT_RUN_DIR"], until(only, 60, "the socket of the node"))

    def answers():
        connection = SocketConnection(path)
        try:
            connection.request("POST", "/prefill", b"{}")
            return connection.getresponse().status == 400
        except OSError:
            return False
        finally:
            connection.close()

    until(answers, 60, "the node answers /prefill")
    return path


class Alone(unittest.TestCase):
    def test_a_node_without_a_conductor_computes_a_prompt_and_reuses_its_blocks(self):
        with Cluster() as c:
            c.start("p0", "--dtype", "f32")
            place = socket_of(c)
            ids = Random(1).ids(150)
            first, second = ask(c, place, ids), ask(c, place, ids)
            self.assertEqual([first["token"]], oracle(ids, 1))
            self.assertEqual((first["cached_tokens"], first["computed_tokens"]), (0, 150))
            self.assertEqual((second["cached_tokens"], second["computed_tokens"]), (128, 22))
            self.assertEqual(second["token"], first["token"])
            self.assertEqual(len(first["top"]), 5)
            self.assertEqual(first["top"][0], {"id": first["token"], "logprob": first["logprob"]})
            self.assertEqual(ask(c, place, ids, "--no-cache")["computed_tokens"], 150)
            code, out, err = run("mc-prefill", "ask", place, "-p", "Once upon a time", env=c.env)
            self.assertEqual(code, 0, err)
            self.assertRegex(out.decode(), r'p0: first token \d+ ".+"\nprompt \d+ tokens: 0 cached')
            self.assertEqual(c.processes["p0"].stop(), 0)
            del c.processes["p0"]

    def test_what_the_node_cannot_take_is_refused_with_the_number(self):
        with Cluster() as c:
            c.start("p0", "--kv-mem", "4MiB")
            place = socket_of(c)
            code, err = refused(c, place, Random(2).ids(4000))
            self.assertEqual(code, 1)
            self.assertRegex(err, r"MC4005 .*prompt of about 400\d tokens, this node holds \d+")
            code, err = refused(c, place, [5, 17, 99999])
            self.assertEqual(code, 1)
            self.assertRegex(err, "MC4002 .*element 2, 99999, is not a token id below 2048")
            code, err = refused(c, place, [5], "--timeout", "61m")
            self.assertEqual(code, 2)
            self.assertRegex(err, "MC1002 .*'61m' is not from 1ms to 1h")
            words = ["mc-prefill", "ask", place, "-f", "-"]
            code, out, err = run(*words, stdin=b"a b c " * 100_000, env=c.env)
            self.assertEqual((code, out), (1, b""))
            self.assertRegex(err, "MC4004 .*no body of more than [0-9]+ bytes")
            self.assertEqual(ask(c, place, [5, 17, 9])["computed_tokens"], 3)


class InACluster(unittest.TestCase):
    def test_the_name_of_a_node_is_enough_and_the_cache_is_the_clusters(self):
        with Cluster("1p1d1c", worker=["--dtype", "f32"]) as c:
            ids = Random(3).ids(200)
            c.complete(ids=ids, max_tokens=4)
            self.assertEqual(ask(c, "p0", ids)["cached_tokens"], 192)
            other = Random(4).ids(200)
            self.assertEqual(ask(c, "p0", other)["cached_tokens"], 0)
            answer = c.complete(ids=other, max_tokens=4)
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 192)
            self.assertEqual(token_ids(answer), oracle(other, 4))
            for node in ("d0", "c0"):
                for prompt in (ids, [5] * 20_000):  # the longer body is refused before it has been read
                    code, err = refused(c, node, prompt)
                    program = {"d0": "mc-decode", "c0": "mc-cache"}[node]
                    self.assertIn(f"this {program} node computes no prompts", err)
                    self.assertEqual(code, 1, err)
            c.wait_quiet()

    def test_http_takes_no_prompt_without_the_admin_key(self):
        with Cluster("1p1d") as c:
            code, err = refused(c, c.node("p0")["url"], [5, 17, 9])
            self.assertEqual(code, 1, err)
            self.assertIn("MC4026", err)
            self.assertIn("this program has no admin key", err)
            self.assertIn("next:  on the same host name the node", err)
            self.assertIn(", which needs no key; elsewhere start the server with --admin-key-file FILE", err)
            code, _, err = run("mc-cache", "ls", c.node("p0")["http"], env=c.env)
            self.assertEqual(code, 1, err)
            self.assertIn("MC4026", err)
            self.assertIn("next:  on the same host name the node", err)
            self.assertNotIn("--url", err)
        with tempfile.TemporaryDirectory() as folder:
            key = os.path.join(folder, "admin.key")
            self.assertEqual(run("mc-conductor", "keygen", "--admin", "-o", key)[0], 0)
            with Cluster(roles=["conductor", "p0"], worker=["--admin-key-file", key]) as c:
                url = c.node("p0")["url"]
                err = refused(c, url, [5, 17, 9])[1]
                self.assertIn("MC4026", err)
                self.assertIn("send a key with --admin-key-file FILE or --api-key KEY; on the same host name the", err)
                self.assertEqual(ask(c, url, [5, 17, 9], "--admin-key-file", key)["computed_tokens"], 3)

    def test_a_node_that_is_killed_ends_the_request_with_an_error(self):
        with slow_cluster() as c:
            verb = start_ask(c, 2000)
            c.processes["p0"].kill()
            c.processes.pop("p0").close()
            out, err = verb.communicate(timeout=60)
            self.assertEqual((verb.returncode, out), (3, b""), err)
            self.assertIn(b"MC2101", err)
            self.assertIn(b"the node gave no answer", err)

    def test_a_conductor_that_is_killed_does_not_end_the_request(self):
        with slow_cluster() as c:
            verb = start_ask(c, 1000)
            c.processes["conductor"].kill()
            c.processes.pop("conductor").close()
            out, err = verb.communicate(timeout=60)
            self.assertEqual(verb.returncode, 0, err)
            self.assertEqual(json.loads(out)["computed_tokens"], 1000)

    def test_a_second_signal_tells_a_client_that_the_node_is_stopping(self):
        with slow_cluster() as c:
            verb = start_ask(c, 2000)
            process = c.processes["p0"].popen
            until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM), 60, "the node has left")
            out, err = verb.communicate(timeout=60)
            self.assertEqual((verb.returncode, out), (1, b""), err)
            self.assertIn(b"MC4015", err)
            c.processes.pop("p0").close()

    def test_a_client_that_leaves_and_a_deadline_stop_the_computation(self):
        with slow_cluster() as c:
            verb = start_ask(c, 2000)
            verb.send_signal(signal.SIGKILL)
            verb.communicate()
            until(lambda: c.node("p0")["running"] == 0, 60, "the node is idle")
            # The blocks of a prompt that is computed to its end stay in the cache.
            self.assertLess(c.metric("p0", "mc_kv_blocks", 'tier="host"', 'state="cached"'), 2000 // 64 - 1)
            code, err = refused(c, "p0", Random(6).ids(400), "--timeout", "500ms")
            self.assertEqual(code, 1, err)
            self.assertIn("MC4016", err)
            self.assertIn("next:  raise --timeout", err)
            c.wait_quiet()


@contextlib.contextmanager
def slow_cluster():
    """A prefill node that takes 10 s for 1,000 tokens, in chunks of 64."""
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "slow.toml")
        with open(profile, "w", encoding="utf-8") as file:
            file.write(quick_profile(prefill_s=0.01, step_s=0.01, row_s=0.001))
        with Cluster(roles=["conductor"]) as c:
            c.start("p0", "--runner", f"costed:{profile}", "--chunk-tokens", "64")
            c.wait_nodes()
            yield c


def start_ask(c, count):
    """A prompt of `count` tokens that the node computes now, and for seconds from now on."""
    place = os.path.join(c.env["MCT_RUN_DIR"], f"node-{c.node('p0')['instance'][:12]}.http")
    words = [program("mc-prefill"), "ask", place, "--prompt-ids", ",".join(map(str, Random(5).ids(count))), "--json"]
    verb = subprocess.Popen(words, env=c.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: c.node("p0")["running"] == 1, 60, "the node computes the prompt")
    return verb


if __name__ == "__main__":
    unittest.main(verbosity=2)
