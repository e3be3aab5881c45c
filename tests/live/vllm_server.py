"""A real vLLM on the CPU with either of its front ends and the official clients, through tokometer (`make live-vllm`;
not part of `make test`). The model's weights are random: its output is meaningless, but its token counts are real."""

import anthropic
import names
import openai
from process import Tokometer, until
from vllm_process import engine, metric_total

# A front end takes a minute or two to start.
MAX_SECONDS = 900

PROMPT = [{"role": "user", "content": "Count. Say hello."}]
LIMITS = (1, 40)
# The model does not stop early: a response has exactly the maximum number of tokens.
ENDLESS = {"ignore_eos": True}
# The grammar of this tool allows one call only: every response is a complete call.
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def _counters(port):
    """The engine's own counts: prompt and generated tokens."""
    return metric_total(port, "vllm:prompt_tokens_total"), metric_total(port, "vllm:generation_tokens_total")


class _Session:
    """Requests through one sidecar, and the values that each client received, to compare with the records."""

    def __init__(self, server, relay):
        self.server, self.relay = server, relay
        self.expected = []
        self.before = _counters(server.port)
        self.openai = openai.OpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=f"http://127.0.0.1:{relay.port}", api_key="none", max_retries=0)

    def add(self, label, operation, streaming, finishes, tokens, source="usage"):
        self.expected.append((label, operation, streaming, finishes, tokens, source))

    def chat(self, limit, stream, usage=True, continuous=False, **more):
        options = {"model": "tiny", "messages": PROMPT, "temperature": 0, "max_tokens": limit, "extra_body": ENDLESS} | more
        label = f"chat {limit} {more.get('n', 1)} stream={stream} usage={usage} continuous={continuous} tools={'tools' in more}"
        if not stream:
            response = self.openai.chat.completions.create(**options)
            finishes = [choice.finish_reason for choice in response.choices]
            return self.add(label, "chat", False, finishes, (response.usage.prompt_tokens, response.usage.completion_tokens))
        if usage:
            options["stream_options"] = {"include_usage": True, "continuous_usage_stats": continuous}
        chunks = list(self.openai.chat.completions.create(stream=True, **options))
        finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        counted = chunks[-1].usage
        tokens = (counted.prompt_tokens, counted.completion_tokens) if usage else (None, None)
        return self.add(label, "chat", True, finishes, tokens, "usage" if usage else None)

    def completions(self, limit, stream, **more):
        options = {"model": "tiny", "prompt": "Count.", "temperature": 0, "max_tokens": limit, "extra_body": ENDLESS} | more
        if stream:
            chunks = list(self.openai.completions.create(stream=True, stream_options={"include_usage": True}, **options))
            finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
            usage = chunks[-1].usage
        else:
            response = self.openai.completions.create(**options)
            finishes, usage = [choice.finish_reason for choice in response.choices], response.usage
        label = f"completions {limit} {more.get('n', 1)} stream={stream}"
        self.add(label, "text_completion", stream, finishes, (usage.prompt_tokens, usage.completion_tokens))

    def responses(self, limit, stream):
        options = {"model": "tiny", "input": "Count.", "temperature": 0, "max_output_tokens": limit, "extra_body": ENDLESS}
        if stream:
            response = list(self.openai.responses.create(stream=True, **options))[-1].response
        else:
            response = self.openai.responses.create(**options)
        finish = {"completed": "completed", "incomplete": "length"}[response.status]
        tokens = (response.usage.input_tokens, response.usage.output_tokens)
        self.add(f"responses {limit} stream={stream}", "chat", stream, [finish], tokens)

    def messages(self, limit, stream):
        options = {"model": "tiny", "max_tokens": limit, "messages": PROMPT, "extra_body": {"temperature": 0} | ENDLESS}
        if stream:
            with self.anthropic.messages.stream(**options) as events:
                response = events.get_final_message()
        else:
            response = self.anthropic.messages.create(**options)
        finish = {"end_turn": "stop", "max_tokens": "length"}[response.stop_reason]
        cached = response.usage.cache_read_input_tokens or 0
        tokens = (response.usage.input_tokens + cached, response.usage.output_tokens)
        self.add(f"messages {limit} stream={stream}", "chat", stream, [finish], tokens)

    def check(self, engine):
        """Compares each record with what its client received, and the sum of the records with the engine's own counters."""
        records = self.relay.wait_for_records(len(self.expected))
        for record, (label, operation, streaming, finishes, (input_tokens, output_tokens), source) in zip(records, self.expected):
            actual = (record["operation"], record["streaming"], record["outcome"], record["status"], record["engine"])
            assert actual == (operation, streaming, names.OK, 200, engine), f"{label}: {record}"
            assert sorted(record["finish_reasons"]) == sorted(finishes), f"{label}: {record}, received {finishes}"
            if source is None:
                # The client received no usage: the recorded count is a lower bound.
                assert record["output_tokens_source"] == names.LOWER_BOUND, f"{label}: {record}"
            else:
                actual = (record["input_tokens"], record["output_tokens"], record["output_tokens_source"])
                assert actual == (input_tokens, output_tokens, source), f"{label}: {record}, received {input_tokens}+{output_tokens}"
            if streaming:
                assert record["time_to_first_token_ms"] is not None, f"{label}: {record}"
        without_usage = [request for request in self.expected if request[5] is None]
        counted = _counters(self.server.port)
        engine_generated = counted[1] - self.before[1]
        recorded = sum(record["output_tokens"] for record in records)
        received = sum(request[4][1] for request in self.expected if request[5])
        assert recorded <= engine_generated and received <= engine_generated, (recorded, received, engine_generated)
        if not without_usage:
            assert recorded == engine_generated, (recorded, engine_generated)
        counts = f"{recorded} tokens counted, {engine_generated:.0f} generated, {len(without_usage)} responses without usage"
        print(f"    {len(self.expected)} requests, {counts}")


def _abort(relay, server):
    """Aborts a response in mid-stream; returns its record."""
    before = len(relay.records())
    with openai.OpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key="none", max_retries=0) as client:
        options = {"model": "tiny", "messages": PROMPT, "max_tokens": 900, "extra_body": ENDLESS}
        stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
        chunks = [next(stream) for _ in range(6)]
        stream.close()
    record = relay.wait_for_records(before + 1)[-1]
    assert record["outcome"] == names.ABORTED, record
    received = sum(1 for chunk in chunks for choice in chunk.choices if choice.delta.content)
    assert record["output_tokens"] >= received and record["output_tokens_source"] == names.LOWER_BOUND, (record, received)
    running = "vllm:num_requests_running"
    until(lambda: metric_total(server.port, running) == 0, "the engine has stopped generating")
    print(f"    aborted after {len(chunks)} events: {record['output_tokens']} tokens, {record['outcome']}")


def counts_match_the_python_front_end():
    with engine("python", "--enable-per-request-metrics", "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server, Tokometer(server.port) as relay:
        session = _Session(server, relay)
        for limit in LIMITS:
            for stream in (True, False):
                session.chat(limit, stream)
                session.completions(limit, stream)
                session.responses(limit, stream)
                session.messages(limit, stream)
        session.chat(40, True, continuous=True)
        # vLLM rejects a request for several choices that would be identical, so the temperature is 1.
        session.chat(20, True, n=2, temperature=1)
        session.chat(20, False, n=2, temperature=1)
        session.completions(20, True, n=2, temperature=1)
        for stream in (True, False):
            session.chat(200, stream, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "get_weather"}}, extra_body={})
        session.check("vllm")
        queued = [record for record in relay.records() if record["queue_time_ms"] is not None]
        assert len(queued) >= 8, [record["queue_time_ms"] for record in relay.records()]

        session.chat(40, True, usage=False)
        session.check("vllm")
        _abort(relay, server)


def counts_match_the_rust_front_end():
    with engine("rust") as server, Tokometer(server.port) as relay:
        session = _Session(server, relay)
        for limit in LIMITS:
            for stream in (True, False):
                session.chat(limit, stream)
                session.completions(limit, stream)
        session.chat(40, True, continuous=True)
        session.check("vllm")
        _abort(relay, server)
