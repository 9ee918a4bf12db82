#!/usr/bin/env python3
"""OpenAI's own Python package drives a cluster: chat, streams, tools, schemas, embeddings, errors and retries.

The package is fetched once into the build folder with pip; without a package registry the test is skipped.
"""

import asyncio
import json
import unittest

import clients
import cluster
from clients import TEMPLATE, TOOLS, USER
from cluster import Cluster, until

PACKAGE = "openai==3.54.0"
THINKING = TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")
GREEDY = {"model": "mc-tiny", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


def setUpModule():
    global openai, pydantic, c, client
    clients.install("python-clients", PACKAGE)
    import openai
    import pydantic

    c = clients.start(clients.model())
    client = connect(c)
    unittest.addModuleCleanup(client.close)


def connect(to, key="sk-all-1", kind=None, **fields):
    fields.setdefault("max_retries", 0)
    fields.setdefault("timeout", cluster.ANSWER_S)
    return (kind or openai.OpenAI)(base_url=f"http://127.0.0.1:{to.url_port}/v1", api_key=key, **fields)


def chat(**fields):
    return client.chat.completions.create(messages=USER, **{**GREEDY, **fields})


def text_of(chunks):
    return "".join(k.choices[0].delta.content or "" for k in chunks if k.choices)


class Chat(unittest.TestCase):
    def test_a_stream_joins_to_the_whole_answer_and_ends_with_its_usage(self):
        whole = chat()
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertIsNone(whole.choices[0].message.tool_calls)
        self.assertIsNone(whole.choices[0].message.refusal)
        self.assertEqual(whole.usage.completion_tokens, 12)
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(text_of(chunks), whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertIsInstance(chunks[-1].usage.prompt_tokens_details.cached_tokens, int)
        self.assertTrue(all(k.usage is None for k in chunks[:-1]))

    def test_the_package_adds_a_stream_up_to_the_whole_answer(self):
        stop = chat().choices[0].message.content[-2:]  # the package refuses answers that were cut
        fields = {**GREEDY, "logprobs": True, "top_logprobs": 2, "stop": stop}
        whole = client.chat.completions.create(messages=USER, **fields)
        with client.chat.completions.stream(messages=USER, **fields) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, whole.choices[0].message.content)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(final.choices[0].logprobs.content, whole.choices[0].logprobs.content)
        self.assertIn("content.delta", kinds)
        self.assertIn("content.done", kinds)
        self.assertIn("logprobs.content.done", kinds)

    def test_a_stop_string_ends_the_answer_before_it(self):
        free = chat().choices[0].message.content
        stop = free[6:9]
        cut = chat(stop=[stop, "never there"])
        self.assertEqual(cut.choices[0].message.content, free[: free.index(stop)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertEqual(text_of(chat(stop=stop, stream=True)), cut.choices[0].message.content)

    def test_log_probabilities_are_one_a_token_and_join_to_the_text(self):
        choice = chat(logprobs=True, top_logprobs=3).choices[0]
        self.assertEqual(len(choice.logprobs.content), 12)
        joined = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
        self.assertEqual(joined.decode(errors="ignore"), choice.message.content)
        for entry in choice.logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)

    def test_several_choices_differ_and_one_seed_repeats_them(self):
        fields = {"n": 3, "seed": 7, "temperature": 2}
        first, second = ([k.message.content for k in chat(**fields).choices] for _ in range(2))
        self.assertEqual(first, second)
        self.assertEqual(len(set(first)), 3)
        texts = ["", "", ""]
        for chunk in chat(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, first)
        self.assertNotEqual(first, [k.message.content for k in chat(**{**fields, "seed": 8}).choices])

    def test_text_parts_and_the_newer_limit_are_taken(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": USER[0]["content"]}]}]
        answer = client.chat.completions.create(
            messages=parts, model="mc-tiny", temperature=0, max_completion_tokens=12, extra_body={"ignore_eos": True}
        )
        self.assertEqual(answer.choices[0].message.content, chat().choices[0].message.content)

    def test_a_refusal_in_the_conversation_goes_back_as_text(self):
        refused = [*USER, {"role": "assistant", "content": None, "refusal": "No."}, *USER]
        told = [*USER, {"role": "assistant", "content": "No."}, *USER]
        first, second = (client.chat.completions.create(messages=m, **GREEDY) for m in (refused, told))
        self.assertEqual(first.choices[0].message.content, second.choices[0].message.content)

    def test_parameters_that_clients_send_to_openai_alone_are_ignored(self):
        answer = chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True)
        self.assertEqual(answer.choices[0].message.content, chat().choices[0].message.content)

    def test_requests_at_once_get_the_answers_they_get_alone(self):
        async def ask_all():
            async with connect(c, kind=openai.AsyncOpenAI) as several:
                create = several.chat.completions.create
                asks = (create(messages=USER, stream=i % 2 == 1, **GREEDY) for i in range(8))
                answers = await asyncio.gather(*asks)
                return [
                    text_of([chunk async for chunk in answer]) if i % 2 else answer.choices[0].message.content
                    for i, answer in enumerate(answers)
                ]

        self.assertEqual(set(asyncio.run(ask_all())), {chat().choices[0].message.content})


class Forms(unittest.TestCase):
    def check_calls(self, calls):
        self.assertGreaterEqual(len(calls), 1)
        for call in calls:
            self.assertEqual(call.type, "function")
            self.assertTrue(call.id)
            numbers = json.loads(call.function.arguments)
            self.assertEqual(list(numbers), {"sum": ["x", "y"], "double": ["x"]}[call.function.name])
            self.assertTrue(all(type(n) is int and 0 <= n <= 9 for n in numbers.values()))

    def test_a_required_tool_is_called_and_its_answer_goes_back(self):
        fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200, "extra_body": {}}
        choice = chat(**fields).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.check_calls(choice.message.tool_calls)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "9"} for call in choice.message.tool_calls]
        answer = client.chat.completions.create(messages=[*USER, choice.message, *results], tools=TOOLS, **GREEDY)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_allowed_tools_leave_the_other_tools_uncalled(self):
        for name in ("sum", "double"):
            allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
            choice = {"type": "allowed_tools", "allowed_tools": allowed}
            calls = chat(tools=TOOLS, tool_choice=choice, max_tokens=200, extra_body={}).choices[0].message.tool_calls
            self.check_calls(calls)
            self.assertEqual({call.function.name for call in calls}, {name})

    def test_streamed_tool_calls_add_up_to_the_whole_ones(self):
        for seed in range(3):
            fields = {"temperature": 1, "seed": seed, "max_tokens": 200, "extra_body": {}}
            fields = {**GREEDY, **fields, "tools": TOOLS, "tool_choice": "required"}
            whole = client.chat.completions.create(messages=USER, **fields).choices[0]
            with client.chat.completions.stream(messages=USER, **fields) as stream:
                done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
                final = stream.get_final_completion().choices[0]
            self.assertEqual(final.finish_reason, "tool_calls")
            self.check_calls(final.message.tool_calls)
            self.assertEqual(len(done), len(final.message.tool_calls))
            self.assertEqual(
                [(k.function.name, k.function.arguments) for k in final.message.tool_calls],
                [(k.function.name, k.function.arguments) for k in whole.message.tool_calls],
            )
            self.assertFalse(final.message.content)

    def test_a_pydantic_model_is_parsed_whole_and_streamed(self):
        class Point(pydantic.BaseModel):
            x: bool
            kind: pydantic.constr(pattern="^(a|b)$")

        fields = {**GREEDY, "max_tokens": 200, "extra_body": {}, "response_format": Point}
        whole = client.chat.completions.parse(messages=USER, **fields).choices[0]
        self.assertIsInstance(whole.message.parsed, Point)
        with client.chat.completions.stream(messages=USER, **fields) as stream:
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, whole.message.parsed)

    def test_an_answer_that_was_cut_is_told_as_such(self):
        class Word(pydantic.BaseModel):
            letters: list[bool]

        with self.assertRaises(openai.LengthFinishReasonError):
            client.chat.completions.parse(messages=USER, response_format=Word, model="mc-tiny", max_tokens=3)

    def test_reasoning_is_apart_from_the_answer(self):
        with Cluster("1p1d", conductor=["-m", clients.model(THINKING)]) as thinking, connect(thinking) as thinker:
            whole = thinker.chat.completions.create(messages=USER, **GREEDY).choices[0].message
            self.assertTrue(whole.reasoning_content)
            self.assertFalse(whole.content)
            chunks = list(thinker.chat.completions.create(messages=USER, stream=True, **GREEDY))
            reasoning = [getattr(k.choices[0].delta, "reasoning_content", None) or "" for k in chunks]
            self.assertEqual("".join(reasoning), whole.reasoning_content)
            self.assertEqual(text_of(chunks), "")


class Others(unittest.TestCase):
    def test_completions_are_whole_streamed_echoed_and_several(self):
        fields = {**GREEDY, "prompt": ["Once upon a time", "The king"]}
        whole = client.completions.create(**fields)
        self.assertEqual([k.index for k in whole.choices], [0, 1])
        texts = ["", ""]
        for chunk in client.completions.create(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [k.text for k in whole.choices])
        echoed = client.completions.create(**{**fields, "prompt": "The king", "echo": True, "logprobs": 2}).choices[0]
        self.assertEqual(echoed.text, "The king" + texts[1])
        self.assertEqual(len(echoed.logprobs.tokens), len(echoed.logprobs.token_logprobs))
        ids = client.completions.create(**{**fields, "prompt": [[5, 6, 7], [8, 9]]})
        self.assertEqual(len(ids.choices), 2)

    def test_embeddings_are_equal_packed_and_as_numbers(self):
        packed = client.embeddings.create(model="mc-tiny", input=["one", "two"])  # the package asks for base64
        plain = client.embeddings.create(model="mc-tiny", input=["one", "two"], encoding_format="float")
        self.assertEqual(len(packed.data), 2)
        for a, b in zip(packed.data, plain.data):
            self.assertEqual(len(a.embedding), len(b.embedding))
            for x, y in zip(a.embedding, b.embedding):
                self.assertAlmostEqual(x, y, places=5)
        self.assertGreater(packed.usage.prompt_tokens, 0)

    def test_models_are_listed_and_found_by_name(self):
        (listed,) = list(client.models.list())
        self.assertEqual(listed.id, "mc-tiny")
        self.assertEqual(client.models.retrieve("mc-tiny"), listed)
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("gpt-9")


class Errors(unittest.TestCase):
    def test_a_bad_field_is_a_bad_request_that_names_the_field(self):
        picture = {"type": "image_url", "image_url": {"url": "x"}}
        for fields, param in (
            ({"temperature": -1}, "temperature"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "user", "content": [picture]}]}, "messages"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
            ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
        ):
            with self.subTest(param=param), self.assertRaises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{"messages": USER, **GREEDY, **fields})
            self.assertTrue((caught.exception.param or "").startswith(param), caught.exception)
            self.assertEqual(caught.exception.type, "invalid_request_error")
            self.assertTrue(caught.exception.request_id)

    def test_a_prompt_that_is_too_long_has_its_code(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            client.completions.create(**{**GREEDY, "prompt": "x " * 20_000})
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_an_unknown_model_and_an_unsupported_path_are_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            chat(model="gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError) as caught:
            client.responses.create(model="mc-tiny", input="x")
        self.assertIn("/v1/responses", caught.exception.message)

    def test_an_unknown_key_is_an_authentication_error(self):
        with connect(c, key="sk-wrong") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()

    def test_a_quota_is_a_rate_limit_error_with_the_time_to_wait(self):
        with connect(c, key="sk-few-1") as few, self.assertRaises(openai.RateLimitError) as caught:
            for _ in range(20):
                few.chat.completions.create(messages=USER, **GREEDY)
        self.assertEqual(caught.exception.code, "tenant_quota")
        self.assertGreater(int(caught.exception.response.headers["retry-after"]), 0)

    def test_a_client_that_retries_is_served_when_its_quota_allows(self):
        with connect(c, key="sk-soon-1", max_retries=5) as soon:
            # A busy host may take so long for a request that the quota allows the next one at once.
            for _ in range(50):
                answer = soon.chat.completions.with_raw_response.create(messages=USER, **GREEDY)
                if answer.retries_taken > 0:
                    return
        self.fail("no request of 50 was refused and sent again")

    def test_a_client_that_times_out_or_breaks_off_leaves_nothing_behind(self):
        endless = {**GREEDY, "max_tokens": 8000}
        with connect(c, timeout=0.2) as hasty, self.assertRaises(openai.APITimeoutError):
            hasty.chat.completions.create(messages=USER, **endless)
        with chat(**endless, stream=True) as stream:
            next(iter(stream))
        with self.assertRaises(openai.APITimeoutError):
            chat(**endless, timeout=0.2)
        until(lambda: not c.cluster()["requests_unfinished"], 60, "all requests have ended")
        c.wait_quiet()

    def test_a_deadline_is_a_server_error_that_names_itself(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            chat(max_tokens=1500, extra_body={"ignore_eos": True, "mc": {"deadline_ms": 100}})
        self.assertEqual(caught.exception.status_code, 504)
        self.assertEqual(caught.exception.code, "deadline_exceeded")

    def test_an_error_inside_a_stream_is_raised(self):
        with self.assertRaises(openai.APIError) as caught:
            list(chat(max_tokens=1500, stream=True, extra_body={"ignore_eos": True, "mc": {"deadline_ms": 300}}))
        self.assertEqual(caught.exception.code, "deadline_exceeded")


if __name__ == "__main__":
    unittest.main()
