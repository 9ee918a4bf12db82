#!/usr/bin/env python3
"""LangChain's OpenAI chat model drives a cluster: answers, streams, tools, structured output, embeddings and errors.

The packages are fetched once into the build folder with pip; without a package registry the test is skipped.
"""

import asyncio
import os
import unittest

import clients
import cluster
from clients import TOOLS, USER

PACKAGES = ["langchain-openai==1.7.3", "langchain-core==1.7.2"]
PROMPT = USER[0]["content"]


def setUpModule():
    global langchain_openai, messages, openai, pydantic, c
    os.environ["LANGSMITH_TRACING"] = "false"
    clients.install("python-langchain", *PACKAGES)
    import langchain_openai
    import openai
    import pydantic
    from langchain_core import messages

    c = clients.start(clients.model())


def where(key="sk-all-1"):
    return {"base_url": f"http://127.0.0.1:{c.url_port}/v1", "api_key": key, "max_retries": 0}


def model(**fields):
    common = {"model": "mc-tiny", "temperature": 0, "max_tokens": 12, "timeout": cluster.ANSWER_S}
    return langchain_openai.ChatOpenAI(**{**where(), **common, "extra_body": {"ignore_eos": True}, **fields})


class Answers(unittest.TestCase):
    def test_a_stream_adds_up_to_the_whole_answer_with_its_usage(self):
        whole = model().invoke(PROMPT)
        self.assertEqual(whole.response_metadata["finish_reason"], "length")
        self.assertEqual(whole.usage_metadata["output_tokens"], 12)
        chunks = list(model(stream_usage=True).stream(PROMPT))
        self.assertGreater(len(chunks), 2)
        added = chunks[0]
        for chunk in chunks[1:]:
            added += chunk
        self.assertEqual(added.content, whole.content)
        self.assertEqual(added.response_metadata["finish_reason"], "length")
        self.assertEqual(added.usage_metadata["input_tokens"], whole.usage_metadata["input_tokens"])
        self.assertEqual(added.usage_metadata["output_tokens"], 12)

    def test_a_conversation_of_message_objects_is_answered(self):
        kinds = messages.SystemMessage, messages.HumanMessage, messages.AIMessage, messages.HumanMessage
        said = [kind(content="Once upon a time") for kind in kinds]
        self.assertTrue(model().invoke(said).content)

    def test_requests_at_once_get_the_answers_they_get_alone(self):
        alone = model().invoke(PROMPT).content
        self.assertEqual({answer.content for answer in model().batch([PROMPT] * 4)}, {alone})

        async def ask_all():
            asking = model()
            answers = await asyncio.gather(*(asking.ainvoke(PROMPT) for _ in range(4)))
            text = "".join([chunk.content async for chunk in asking.astream(PROMPT)])
            return [*(answer.content for answer in answers), text]

        self.assertEqual(set(asyncio.run(ask_all())), {alone})

    def test_log_probabilities_come_with_the_answer(self):
        entries = model(logprobs=True, top_logprobs=2).invoke(PROMPT).response_metadata["logprobs"]["content"]
        self.assertEqual(len(entries), 12)
        self.assertEqual({len(entry["top_logprobs"]) for entry in entries}, {2})

    def test_embeddings_are_one_a_text(self):
        # LangChain would count tokens with tiktoken, which has no vocabulary for this model.
        embed = langchain_openai.OpenAIEmbeddings(**where(), model="mc-tiny", check_embedding_ctx_length=False)
        one, two = embed.embed_documents(["one", "two"])
        self.assertEqual(len(one), len(two))
        self.assertNotEqual(one, two)
        for x, y in zip(embed.embed_query("one"), one):
            self.assertAlmostEqual(x, y, places=5)


class Forms(unittest.TestCase):
    def check_calls(self, calls):
        self.assertGreaterEqual(len(calls), 1)
        for call in calls:
            self.assertTrue(call["id"])
            self.assertEqual(list(call["args"]), {"sum": ["x", "y"], "double": ["x"]}[call["name"]])
            self.assertTrue(all(type(n) is int and 0 <= n <= 9 for n in call["args"].values()))

    def test_bound_tools_are_called_whole_and_streamed_and_their_answers_go_back(self):
        bound = model(max_tokens=200, extra_body={}).bind_tools(TOOLS, tool_choice="required")
        whole = bound.invoke(PROMPT)
        self.assertEqual(whole.invalid_tool_calls, [])
        self.check_calls(whole.tool_calls)
        added = None
        for chunk in bound.stream(PROMPT):
            added = chunk if added is None else added + chunk
        self.assertEqual(
            [(k["name"], k["args"]) for k in added.tool_calls], [(k["name"], k["args"]) for k in whole.tool_calls]
        )
        results = [messages.ToolMessage(content="9", tool_call_id=k["id"]) for k in whole.tool_calls]
        answer = model().bind_tools(TOOLS).invoke([messages.HumanMessage(content=PROMPT), whole, *results])
        self.assertEqual(answer.response_metadata["finish_reason"], "length")

    def test_a_tool_bound_by_name_or_as_any_is_called(self):
        for choice, names in (("double", {"double"}), ("any", {"sum", "double"})):
            bound = model(max_tokens=200, extra_body={}).bind_tools(TOOLS, tool_choice=choice)
            calls = bound.invoke(PROMPT).tool_calls
            self.check_calls(calls)
            self.assertLessEqual({call["name"] for call in calls}, names)

    def test_structured_output_is_the_pydantic_model_by_each_method(self):
        class Point(pydantic.BaseModel):
            """A point."""

            x: bool
            kind: pydantic.constr(pattern="^(a|b)$")

        for method in ("json_schema", "function_calling"):
            with self.subTest(method=method):
                asking = model(max_tokens=200, extra_body={}).with_structured_output(Point, method=method)
                self.assertIsInstance(asking.invoke(PROMPT), Point)
                *_, last = asking.stream(PROMPT)
                self.assertIsInstance(last, Point)
        both = model(max_tokens=200, extra_body={}).with_structured_output(Point, include_raw=True).invoke(PROMPT)
        self.assertIsNone(both["parsing_error"])
        self.assertIsInstance(both["parsed"], Point)


class Errors(unittest.TestCase):
    def test_a_bad_field_is_a_bad_request_that_names_the_field(self):
        for answer in (model(temperature=-1).invoke, lambda prompt: list(model(temperature=-1).stream(prompt))):
            with self.assertRaises(openai.BadRequestError) as caught:
                answer(PROMPT)
            self.assertEqual(caught.exception.param, "temperature")

    def test_a_prompt_that_is_too_long_is_a_context_overflow(self):
        from langchain_core.exceptions import ContextOverflowError

        # More than the context, more than twice the context, and with its answer more than the context.
        for words, answer in ((5_000, 12), (20_000, 12), (2_000, 8_000)):
            with self.subTest(words=words), self.assertRaises(ContextOverflowError):
                model(max_tokens=answer).invoke("x " * words)

    def test_an_unknown_key_or_model_and_a_spent_quota_have_their_errors(self):
        with self.assertRaises(openai.AuthenticationError):
            model(**where("sk-wrong")).invoke(PROMPT)
        with self.assertRaises(openai.NotFoundError):
            model(model="gpt-9").invoke(PROMPT)
        with self.assertRaises(openai.RateLimitError) as caught:
            for _ in range(20):
                model(**where("sk-few-1")).invoke(PROMPT)
        self.assertEqual(caught.exception.code, "tenant_quota")

    def test_an_error_inside_a_stream_is_raised(self):
        late = {"ignore_eos": True, "mc": {"deadline_ms": 300}}
        with self.assertRaises(openai.APIError) as caught:
            list(model(max_tokens=1500, extra_body=late).stream(PROMPT))
        self.assertEqual(caught.exception.code, "deadline_exceeded")


if __name__ == "__main__":
    unittest.main()
