#!/usr/bin/env python3
"""The OpenAI door end to end: what clients send, what they get, and every refusal by name."""

import http.client
import json
import socket
import threading
import time
import unittest

import cluster
from cluster import Cluster, Random, cached, token_ids, until


def setUpModule():
    global c
    c = Cluster("1p1d1c", worker=["--dtype", "f32"], measures=True)


def tearDownModule():
    c.close()


class Answers(unittest.TestCase):
    def test_a_completion_has_the_fields_clients_read(self):
        answer = c.complete("Once upon a time", max_tokens=8)
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["model"], "mc-tiny")
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 8)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 8)
        self.assertIsInstance(usage["prompt_tokens_details"]["cached_tokens"], int)

    def test_a_streamed_completion_joins_to_the_whole_one(self):
        body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        whole = c.post("/v1/completions", body)[2]
        events = list(c.stream("/v1/completions", dict(body, stream_options={"include_usage": True})))
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(e) for e in events[:-1]]
        self.assertEqual(
            "".join(k["choices"][0]["text"] for k in chunks if k["choices"]), whole["choices"][0]["text"]
        )
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 24)
        self.assertEqual(len({(k["id"], k["created"], k["model"]) for k in chunks}), 1)

    def test_streams_of_several_prompts_and_choices_join_to_the_whole_ones(self):
        prompts = ["Once upon a time", "The king said", "Red and blue are"]
        body = {"prompt": prompts, "n": 2, "max_tokens": 8, "temperature": 0.7, "seed": 4, "ignore_eos": True}
        whole = c.post("/v1/completions", body)[2]
        texts = ["" for _ in range(6)]
        for event in c.stream("/v1/completions", body):
            for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
                texts[choice["index"]] += choice["text"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])

    def test_a_chat_stream_sends_the_role_with_the_first_token_and_one_finish(self):
        body = {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 6,
            "temperature": 0,
            "ignore_eos": True,
        }
        events = [json.loads(e) for e in c.stream("/v1/chat/completions", body) if e != "[DONE]"]
        self.assertEqual(events[0]["choices"][0]["delta"].get("role"), "assistant")
        self.assertEqual(
            [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]], ["length"]
        )
        self.assertEqual(events[-1]["choices"][0]["delta"], {})
        whole = c.post("/v1/chat/completions", body)[2]
        self.assertEqual(whole["object"], "chat.completion")
        self.assertEqual(
            "".join(e["choices"][0]["delta"].get("content", "") for e in events),
            whole["choices"][0]["message"]["content"],
        )

    def test_a_stop_string_ends_the_text_before_it_and_frees_the_pages(self):
        free = c.complete("Once upon a time", max_tokens=40)["choices"][0]["text"]
        stop = free[10:14]
        answer = c.complete("Once upon a time", max_tokens=40, stop=[stop])
        self.assertEqual(answer["choices"][0]["text"], free[: free.index(stop)])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        c.wait_quiet()

    def test_one_seed_gives_one_text_whatever_else_runs(self):
        def ask(seed, prompt="Tell me"):
            return c.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, "seed": seed, "temperature": 4.0})[
                2
            ]["choices"][0]["text"]

        alone = ask(7)
        results = {}
        threads = [
            threading.Thread(target=lambda i=i: results.__setitem__(i, ask(7 if i % 2 else 100 + i)))
            for i in range(8)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertEqual({results[i] for i in range(1, 8, 2)}, {alone})
        self.assertNotEqual(ask(8), alone)

    def test_n_gives_so_many_choices_that_differ(self):
        answer = c.post(
            "/v1/completions", {"prompt": "Tell me", "max_tokens": 16, "n": 3, "seed": 1, "temperature": 4.0}
        )[2]
        self.assertEqual([k["index"] for k in answer["choices"]], [0, 1, 2])
        self.assertGreater(len({k["text"] for k in answer["choices"]}), 1)
        self.assertEqual(
            answer["usage"]["prompt_tokens"], c.complete("Tell me", max_tokens=1)["usage"]["prompt_tokens"]
        )

    def test_logprobs_are_negative_ordered_and_one_a_token(self):
        answer = c.post(
            "/v1/completions",
            {"prompt": "Tell me", "max_tokens": 5, "temperature": 0, "logprobs": 3, "ignore_eos": True},
        )[2]
        logprobs = answer["choices"][0]["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), 5)
        self.assertTrue(all(p <= 0 for p in logprobs["token_logprobs"]))
        for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertAlmostEqual(chosen, max(top.values()), places=5)

    def test_chat_logprobs_have_openais_shape_and_count(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
        plain = c.post("/v1/chat/completions", body)[2]["choices"][0]
        self.assertIsNone(plain["logprobs"])
        answer = c.post("/v1/chat/completions", dict(body, logprobs=True, top_logprobs=2, ignore_eos=True))[2]
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 4)
        for entry in content:
            self.assertEqual(entry["bytes"], list(entry["token"].encode()))
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])
            self.assertGreaterEqual(entry["top_logprobs"][0]["logprob"], entry["top_logprobs"][1]["logprob"])
        streamed = [
            json.loads(e)["choices"][0]["logprobs"]
            for e in c.stream("/v1/chat/completions", dict(body, logprobs=True, top_logprobs=2, ignore_eos=True))
            if e != "[DONE]"
        ]
        self.assertEqual([entry for part in streamed if part for entry in part["content"]], content)

    def test_logprobs_are_of_the_unmodified_distribution(self):
        body = {"prompt": "Tell me", "max_tokens": 1, "logprobs": 5, "ignore_eos": True}
        raw = c.post("/v1/completions", dict(body, temperature=0))[2]["choices"][0]["logprobs"]["top_logprobs"][0]
        for change in ({"temperature": 3.0, "seed": 5}, {"temperature": 0, "repetition_penalty": 1.8}, {"top_k": 1}):
            top = c.post("/v1/completions", dict(body, **change))[2]["choices"][0]["logprobs"]["top_logprobs"][0]
            self.assertEqual(top, raw)

    def test_logit_bias_forces_and_forbids_tokens(self):
        ids = token_ids(c.complete("Tell me", max_tokens=3, ignore_eos=True))
        forbidden = token_ids(
            c.complete("Tell me", max_tokens=8, ignore_eos=True, logit_bias={str(i): -100 for i in ids})
        )
        self.assertFalse(set(forbidden) & set(ids))
        forced = token_ids(c.complete("Tell me", max_tokens=3, ignore_eos=True, logit_bias={"77": 100}))
        self.assertEqual(forced, [77] * 3)

    def test_penalties_make_the_text_repeat_itself_less(self):
        def distinct(**fields):
            return len(set(token_ids(c.complete("Tell me", max_tokens=60, **fields))))

        free = distinct()
        for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2.0}):
            self.assertGreater(distinct(**penalty), free, penalty)

    def test_narrow_distributions_are_greedy(self):
        greedy = token_ids(c.complete("Tell me", max_tokens=12, ignore_eos=True))
        for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
            body = {"prompt": "Tell me", "max_tokens": 12, "ignore_eos": True, "temperature": 2.0, "seed": 3}
            answer = c.post("/v1/completions", dict(body, return_token_ids=True, **narrow))[2]
            self.assertEqual(answer["choices"][0]["token_ids"], greedy, narrow)

    def test_stop_token_ids_and_min_tokens(self):
        ids = token_ids(c.complete("Tell me", max_tokens=20, ignore_eos=True))
        stop = ids[6]
        first = ids.index(stop)
        answer = c.complete("Tell me", max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
        self.assertEqual(token_ids(answer)[: first + 1], ids[: first + 1])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        self.assertEqual(answer["choices"][0]["stop_reason"], stop)
        self.assertLessEqual(answer["usage"]["completion_tokens"], first + 1)
        late = c.complete("Tell me", max_tokens=20, stop_token_ids=[stop], min_tokens=15)
        self.assertGreaterEqual(late["usage"]["completion_tokens"], 15)

    def test_a_stop_string_is_found_across_the_borders_of_tokens(self):
        answer = c.complete("Once upon a time", max_tokens=40, ignore_eos=True, logprobs=0)
        text, tokens = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["tokens"]
        stop = (tokens[4] + tokens[5] + tokens[6])[1:-1]  # ends and begins inside tokens
        cut = c.complete("Once upon a time", max_tokens=40, ignore_eos=True, stop=["never there", stop])
        self.assertEqual(cut["choices"][0]["text"], text[: text.index(stop)])
        self.assertEqual(cut["choices"][0]["stop_reason"], stop)
        kept = c.complete(
            "Once upon a time", max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True
        )
        self.assertEqual(kept["choices"][0]["text"], text[: text.index(stop) + len(stop)])

    def test_echo_puts_the_prompt_in_front(self):
        text = c.complete("Tell me", max_tokens=4, ignore_eos=True)["choices"][0]["text"]
        echoed = c.complete("Tell me", max_tokens=4, ignore_eos=True, echo=True)["choices"][0]["text"]
        self.assertEqual(echoed, "Tell me" + text)
        body = {"prompt": "Tell me", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "echo": True}
        events = [json.loads(e) for e in c.stream("/v1/completions", body) if e != "[DONE]"]
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), echoed)

    def test_a_scored_prompt_has_the_log_probabilities_it_had_as_an_answer(self):
        prompt = c.post("/tokenize", {"prompt": "Once upon a time " * 12})[2]["tokens"]  # more than a block
        body = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 2}
        answer = c.post("/v1/completions", dict(body, prompt=prompt))[2]["choices"][0]
        whole = prompt + answer["token_ids"]
        body = {"prompt": whole, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2}
        scored = c.post("/v1/completions", body)[2]
        self.assertEqual(cached(scored), 0)  # cached blocks have no logits
        rows = scored["choices"][0]["prompt_logprobs"]
        self.assertEqual(len(rows), len(whole))
        self.assertIsNone(rows[0])
        for row, token, logprob in zip(
            rows[len(prompt) :], answer["token_ids"], answer["logprobs"]["token_logprobs"]
        ):
            self.assertAlmostEqual(row[str(token)]["logprob"], logprob, places=3)
            self.assertEqual(row[str(token)]["rank"], 1)  # greedy
        for row, token in zip(rows[1:], whole[1:]):
            self.assertIn(len(row), (2, 3))
            self.assertIn(str(token), row)
            self.assertEqual(sorted(e["rank"] for e in row.values())[:2], [1, 2])
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "prompt_logprobs": 0}
        told = c.post("/v1/chat/completions", chat)[2]
        self.assertEqual(len(told["prompt_logprobs"]), told["usage"]["prompt_tokens"])

    def test_echo_with_logprobs_covers_the_prompt_whole_and_streamed(self):
        body = {"prompt": "Tell me more", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        plain = c.post("/v1/completions", body)[2]["choices"][0]
        body["echo"] = True
        whole = c.post("/v1/completions", body)[2]["choices"][0]
        logprobs = whole["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), "<|bos|>" + whole["text"])
        self.assertEqual(whole["text"], "Tell me more" + plain["text"])
        self.assertEqual((logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]), (None, None))
        self.assertTrue(all(p <= 0 for p in logprobs["token_logprobs"][1:]))
        self.assertEqual(logprobs["token_logprobs"][-3:], plain["logprobs"]["token_logprobs"])
        self.assertEqual(logprobs["text_offset"][:2], [0, 0])  # BOS is not in the text
        for token, offset in zip(logprobs["tokens"][1:], logprobs["text_offset"][1:]):
            self.assertEqual(whole["text"][offset : offset + len(token)], token)
        for n in (1, 2):
            streamed = [json.loads(e) for e in c.stream("/v1/completions", dict(body, n=n)) if e != "[DONE]"]
            for index in range(n):
                parts = [e["choices"][0] for e in streamed if e["choices"][0]["index"] == index]
                self.assertEqual("".join(p["text"] for p in parts), whole["text"])
                for key in ("tokens", "token_logprobs", "text_offset"):
                    self.assertEqual([x for p in parts if p["logprobs"] for x in p["logprobs"][key]], logprobs[key])
        several = c.post("/v1/completions", dict(body, n=3))[2]["choices"]
        self.assertEqual([k["logprobs"] for k in several], [logprobs] * 3)

    def test_log_probabilities_of_a_long_prompt_are_streamed_whole_or_refused_with_their_number(self):
        body = {"prompt": [5 + i % 900 for i in range(1800)], "max_tokens": 1, "temperature": 0, "echo": True}
        body.update(logprobs=8, n=1, ignore_eos=True)  # 16,200 numbers
        whole = c.post("/v1/completions", body)[2]["choices"][0]["logprobs"]
        events = list(c.stream("/v1/completions", body))
        self.assertEqual(events[-1], "[DONE]")
        parts = [e["choices"][0]["logprobs"] for e in map(json.loads, events[:-1])]
        self.assertEqual([x for p in parts if p for x in p["token_logprobs"]], whole["token_logprobs"])
        for more, most in (
            (dict(n=2, stream=True), "32400 numbers; at most 16384 are given in a stream"),
            (dict(n=8), "129600 numbers; at most 65536 are given"),
        ):
            status, _, answer = c.post("/v1/completions", dict(body, **more))
            self.assertEqual((status, answer["error"]["param"]), (400, "logprobs"))
            self.assertIn(most, answer["error"]["message"])
        vast = {"prompt": [9], "max_tokens": 8000, "n": 64, "logprobs": 20}
        status, _, answer = c.post("/v1/completions", vast)
        self.assertEqual((status, answer["error"]["param"]), (400, "logprobs"))
        self.assertIn("10752000 numbers", answer["error"]["message"])
        one = c.post("/v1/completions", {"prompt": [9], "max_tokens": 1, "prompt_logprobs": 0})[2]
        self.assertEqual(one["choices"][0]["prompt_logprobs"], [None])

    def test_the_prompt_alone_is_scored_with_no_token_after_it(self):
        body = {"prompt": ["Tell me more", "Once"], "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = c.post("/v1/completions", body)[2]
        self.assertEqual([k["text"] for k in answer["choices"]], body["prompt"])
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        for choice in answer["choices"]:
            self.assertEqual("".join(choice["logprobs"]["tokens"]), "<|bos|>" + choice["text"])
            self.assertEqual(choice["finish_reason"], "length")

    def test_best_of_gives_the_likeliest_of_what_it_drew(self):
        body = {"prompt": "Tell me", "max_tokens": 8, "seed": 1, "temperature": 3.0, "ignore_eos": True}
        every = c.post("/v1/completions", dict(body, n=6, logprobs=0))[2]
        mean = lambda k: sum(k["logprobs"]["token_logprobs"]) / len(k["logprobs"]["tokens"])
        best = sorted(every["choices"], key=mean, reverse=True)[:2]
        answer = c.post("/v1/completions", dict(body, n=2, best_of=6))[2]
        self.assertEqual([k["text"] for k in answer["choices"]], [k["text"] for k in best])
        self.assertEqual([k["index"] for k in answer["choices"]], [0, 1])
        self.assertEqual([k["logprobs"] for k in answer["choices"]], [None, None])
        self.assertEqual(answer["usage"]["completion_tokens"], 48)  # what was drawn was computed

    def test_tokenize_and_detokenize_are_inverse(self):
        text = "Hello, wörld! 你好 🎉\n\tdef f(x): return x"
        ids = c.post("/tokenize", {"prompt": text, "add_special_tokens": False})[2]
        self.assertEqual(ids["count"], len(ids["tokens"]))
        self.assertEqual(c.post("/detokenize", {"tokens": ids["tokens"]})[2]["prompt"], text)

    def test_models_health_and_version_answer(self):
        card = c.get("/v1/models")["data"][0]
        self.assertEqual((card["id"], card["root"]), ("mc-tiny", "mc-tiny"))
        self.assertEqual(c.request("GET", "/health")[0::2], (200, b""))
        self.assertIn("version", c.get("/version"))

    def test_metrics_have_help_and_type_for_every_family_and_the_names_dashboards_query(self):
        c.complete("Once upon", max_tokens=4)
        text = c.request("GET", "/metrics")[2].decode()
        names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
        self.assertEqual(names, helped)
        for name in (
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:prefix_cache_hits_total",
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "mc_requests_total",
            "mc_stage_seconds",
            "mc_build_info",
        ):
            self.assertIn(name, names)

    def test_each_prompt_token_is_counted_under_one_source(self):
        def by_source():
            lines = fresh.request("GET", "/metrics")[2].decode().splitlines()
            family = [line for line in lines if line.startswith("vllm:prompt_tokens_by_source_total{")]
            sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
            return [sum(float(x.rsplit(" ", 1)[1]) for x in family if f'source="{s}"' in x) for s in sources]

        with Cluster("1p1d") as fresh:  # other tests' requests would be counted too
            fresh.complete(ids=Random(49).ids(700), max_tokens=2)
            until(lambda: by_source() == [700, 0, 0], 60, "the computed tokens are counted")
            found = cached(fresh.complete(ids=Random(49).ids(700), max_tokens=2))
            self.assertGreater(found, 0)
            until(lambda: by_source() == [1400 - found, found, 0], 60, "the cached tokens are counted")

    def test_a_shared_prefix_of_1500_tokens_is_reused_whole(self):
        ids = Random(50).ids(1500)
        cold = c.complete(ids=ids + [20], max_tokens=2)
        warm = c.complete(ids=ids + [21], max_tokens=2)
        self.assertEqual(cached(warm), 1500 // 64 * 64)
        ttft = [sum(a["mc"][k] for k in ("queue_ms", "accept_ms", "fetch_ms", "prefill_ms")) for a in (cold, warm)]
        print(f"TTFT on the nodes, 1501 tokens: cold {ttft[0]:.1f} ms, warm {ttft[1]:.1f} ms")

    def test_64_concurrent_streams_all_finish(self):
        ends = []

        def ask(i):
            events = list(
                c.stream(
                    "/v1/completions",
                    {"prompt": Random(i).ids(40 + i), "max_tokens": 20, "temperature": 0, "ignore_eos": True},
                    timeout=600,
                )
            )
            ends.append(events[-1])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(600)
        self.assertEqual(ends, ["[DONE]"] * 64)
        c.wait_quiet()

    def test_a_client_that_disconnects_frees_pages_and_leases(self):
        stream = c.stream(
            "/v1/completions",
            {"prompt": Random(9).ids(300), "max_tokens": 2000, "temperature": 0, "ignore_eos": True},
        )
        next(stream)
        began = time.monotonic()
        stream.close()
        c.wait_quiet()
        print(f"disconnect to all free, seen by heartbeat: {1e3 * (time.monotonic() - began):.0f} ms")


class Refusals(unittest.TestCase):
    def refused(self, path, body, status, code, *words, **kwargs):
        got, headers, answer = c.post(path, body, **kwargs)
        self.assertEqual((got, answer["error"]["code"]), (status, code), answer)
        for word in words:
            self.assertIn(word, answer["error"]["message"] + str(answer["error"]["param"]))
        return headers

    def test_a_prompt_that_leaves_no_room_is_blamed_for_itself_not_max_tokens(self):
        for count, param in ((8200, "prompt"), (8192, "prompt"), (8191, "max_tokens")):
            status, _, answer = c.post("/v1/completions", {"prompt": [5] * count, "max_tokens": 2})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)

    def test_each_bad_request_is_named(self):
        ok = {"prompt": "x", "max_tokens": 1}
        self.refused("/v1/completions", b"{\"prompt\": ", 400, "malformed_json")
        self.refused("/v1/completions", b"{\"prompt\": \"a\xff\"}", 400, "invalid_utf8", "byte 13")
        self.refused("/v1/completions", dict(ok, model="gpt-9"), 404, "model_not_found", "gpt-9")
        self.refused("/v1/completions", dict(ok, max_tokens=9000), 400, "context_length_exceeded", "8192")
        self.refused("/v1/completions", {"prompt": [5] * 8200, "max_tokens": 1}, 400, "context_length_exceeded")
        self.refused("/v1/completions", dict(ok, temperature=-1), 400, "invalid_value", "temperature")
        for field, value in (
            ("top_p", 0),
            ("top_k", -2),
            ("min_p", 1.5),
            ("presence_penalty", 3),
            ("frequency_penalty", "x"),
            ("repetition_penalty", 0),
            ("logit_bias", {"99999": 1}),
            ("logit_bias", {"5": 101}),
            ("n", 0),
            ("logprobs", 21),
            ("prompt_logprobs", 21),
            ("stop", [""]),
            ("stop_token_ids", [99999]),
            ("min_tokens", 2),
            ("seed", 1.5),
            ("max_tokens", 0),
        ):
            self.refused("/v1/completions", dict(ok, **{field: value}), 400, "invalid_value", field)
        self.refused(
            "/v1/completions", dict(ok, use_beam_search=True), 400, "unsupported_parameter", "use_beam_search"
        )
        self.refused(
            "/v1/completions", dict(ok, n=2, best_of=1), 400, "invalid_value", "best_of must be at least n (2)"
        )
        self.refused("/v1/completions", dict(ok, prompt_logprobs=1, stream=True), 400, "invalid_value", "streamed")
        self.refused("/v1/completions", dict(ok, suffix="y"), 400, "unsupported_parameter", "suffix")
        self.refused(
            "/v1/completions",
            dict(ok, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}),
            400,
            "unsupported_schema",
            "#/type",
        )
        self.refused("/v1/completions", dict(ok, mc={"attention": "moba:block=7"}), 400, "invalid_value", "attention")
        self.refused("/v1/completions", {"prompt": [99999], "max_tokens": 1}, 400, "invalid_value", "below 2048")
        self.refused("/v1/rerank", {"input": "x"}, 404, "unsupported_endpoint")
        self.refused("/nowhere", {}, 404, "not_found")

    def test_an_oversized_body_is_refused_with_413(self):
        with socket.create_connection(("127.0.0.1", c.url_port), timeout=60) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n")
            self.assertIn(b" 413 ", s.recv(200))

    def test_a_deadline_that_passes_is_a_504_that_names_the_stage(self):
        headers = self.refused(
            "/v1/completions",
            {
                "prompt": Random(3).ids(2000),
                "max_tokens": 5000,
                "temperature": 0,
                "ignore_eos": True,
                "mc": {"deadline_ms": 150},
            },
            504,
            "deadline_exceeded",
            "stage",
        )
        self.assertIn("x-request-id", headers)
        c.wait_quiet()

    def test_a_promise_that_cannot_be_kept_is_rejected_early_with_numbers(self):
        headers = self.refused(
            "/v1/completions",
            {"prompt": Random(4).ids(3000), "max_tokens": 4, "mc": {"ttft_slo_ms": 1}},
            429,
            "predicted_slo_miss",
            "predicted TTFT",
        )
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertRegex(headers["x-mc-reason"], r"^predicted_slo_miss; bound=ttft; predicted_ms=\d+; allowed_ms=1$")

    def test_what_a_request_moved_and_computed_is_in_the_metrics_of_the_nodes(self):
        def nodes():
            return {
                "transfers": c.metric("d0", "vllm:nixl_xfer_time_seconds_count"),
                "bytes": c.metric("d0", "vllm:nixl_bytes_transferred_sum"),
                "by_transport": c.metric("d0", "mc_xfer_seconds_count"),
                "by_class": c.metric("d0", "mc_xfer_class_bytes_total"),
                "of_prefill": c.metric("d0", "mc_xfer_bytes_total", 'direction="in"', 'peer_role="prefill"'),
                "batches": c.metric("d0", "mc_xfer_batches_total"),
                "steps": c.metric("d0", "vllm:iteration_tokens_total_count"),
                "computed": c.metric("p0", "vllm:iteration_tokens_total_sum"),
                "hits": c.metric("p0", "mc_kv_block_hits_total"),
            }

        ids = Random(77).ids(200)
        c.complete(ids=ids, max_tokens=4, mc={"no_cache": True})  # every family has its first sample
        c.wait_quiet()  # two heartbeats are longer than what the metrics lag behind
        before = nodes()
        c.complete(ids=ids, max_tokens=9)
        c.complete(ids=ids, max_tokens=9)

        c.wait_quiet()
        after = nodes()
        grown = {name: after[name] - before[name] for name in after}
        self.assertEqual(grown["steps"], 2 * 8)
        self.assertEqual(grown["hits"], 3)  # blocks of the second request
        self.assertEqual(grown["computed"], 200 + 8)
        self.assertGreater(grown["bytes"], 0)
        self.assertGreater(grown["transfers"], 0)
        self.assertEqual(grown["by_transport"], grown["transfers"])
        self.assertEqual(grown["batches"], grown["transfers"])
        self.assertEqual(grown["by_class"], grown["bytes"])
        self.assertEqual(grown["of_prefill"], grown["bytes"])
        self.assertEqual(c.metric("d0", "mc_xfer_peers"), len(c.cluster()["nodes"]) - 1)
        self.assertGreater(c.metric("d0", "mc_xfer_slices_total"), 0)
        self.assertGreater(c.metric("p0", "mc_xfer_notifies_total"), 0)
        self.assertGreaterEqual(c.metric("d0", "mc_xfer_connections_total"), 2)  # up, and dialled or accepted

    def test_garbage_on_every_port_leaves_the_service_unharmed(self):
        noise = bytes(Random(5).below(256) for _ in range(5000))
        for node in c.cluster()["nodes"]:
            host, port = node["http"].rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=60) as s:
                s.sendall(noise)
        with socket.create_connection(("127.0.0.1", c.url_port), timeout=60) as s:
            s.sendall(noise)
        for name in ("control",):
            for node in c.cluster()["nodes"]:
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(60)
                    s.connect(node[name].removeprefix("ipc://"))
                    s.sendall(noise)
        self.assertEqual(len(token_ids(c.complete(ids=Random(6).ids(200), max_tokens=5))), 5)
        self.assertEqual(len(c.cluster()["nodes"]), 3)


class NoWorkers(unittest.TestCase):
    def test_without_workers_health_and_requests_say_what_is_missing(self):
        with Cluster(roles=["conductor"]) as lonely:
            status, _, body = lonely.request("GET", "/health")
            self.assertEqual((status, body), (503, b"no_prefill"))
            status, headers, answer = lonely.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            self.assertEqual((status, answer["error"]["code"]), (503, "no_prefill"))
            self.assertIn("retry-after", headers)


if __name__ == "__main__":
    unittest.main(verbosity=2)
