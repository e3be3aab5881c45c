"""A real llama-server on each of its routes, with the official openai and anthropic clients, through tokometer."""

import json

import anthropic
import httpx2 as httpx
import names
import openai
from process import Tokometer, start_llama_server

PROMPT = "Count."
LIMITS = (12, 400)  # Cut off by the limit, and ended by the model.


class Expected:
    """What the client received for one request, to compare its record with."""

    def __init__(self, operation, streaming, finish, input_tokens, output_tokens):
        self.operation, self.streaming, self.finish = operation, streaming, finish
        self.input_tokens, self.output_tokens = input_tokens, output_tokens


def _check(record, expected, label):
    actual = {name: record[name] for name in ("operation", "streaming", "finish_reasons", "input_tokens", "output_tokens")}
    received = {
        "operation": expected.operation,
        "streaming": expected.streaming,
        "finish_reasons": [expected.finish],
        "input_tokens": expected.input_tokens,
        "output_tokens": expected.output_tokens,
    }
    assert actual == received, f"{label}: the record has {actual}, the client received {received}"
    assert record["outcome"] == names.OK and record["status"] == 200, record
    assert record["engine"] == "llama_cpp" and record["output_tokens_source"] in names.EXACT, record
    if expected.streaming:
        assert record["time_to_first_token_ms"] is not None, record


def _compare(routes):
    """Runs requests, each with a client on a new relay, and compares every record with what the client received."""
    with start_llama_server() as server, Tokometer(server.port) as relay:
        expected = [(label, run(relay.port)) for label, run in routes]
        records = relay.wait_for_records(len(expected))
        records.sort(key=lambda record: (record["connection"], record["sequence"]))
        for (label, values), record in zip(expected, records):
            _check(record, values, label)
        print(f"    {len(expected)} requests: {', '.join(f'{values.input_tokens}+{values.output_tokens}' for _, values in expected)}")


def _openai(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def _anthropic(port):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0)


def completion_counts_match_the_client():
    def run(limit, stream):
        def send(port):
            with _openai(port) as client:
                response = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=limit, stream=stream)
                last = list(response)[-1] if stream else response
            usage, finish = last.usage, last.choices[0].finish_reason
            return Expected("text_completion", stream, finish, usage.prompt_tokens, usage.completion_tokens)

        return send

    _compare([(f"{limit} tokens, stream {stream}", run(limit, stream)) for limit in LIMITS for stream in (True, False)])


def responses_counts_match_the_client():
    def run(limit, stream):
        def send(port):
            with _openai(port) as client:
                options = {"model": "tiny", "input": PROMPT, "temperature": 0, "max_output_tokens": limit}
                if stream:
                    events = list(client.responses.create(stream=True, **options))
                    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
                    response = events[-1].response
                    assert text and text == response.output_text, (text, response)
                else:
                    response = client.responses.create(**options)
            finish = {"completed": "completed", "incomplete": "length"}[response.status]
            return Expected("chat", stream, finish, response.usage.input_tokens, response.usage.output_tokens)

        return send

    _compare([(f"{limit} tokens, stream {stream}", run(limit, stream)) for limit in LIMITS for stream in (True, False)])


def messages_counts_match_the_client():
    def run(limit, stream):
        def send(port):
            with _anthropic(port) as client:
                options = {"model": "tiny", "max_tokens": limit, "extra_body": {"temperature": 0}}
                options["messages"] = [{"role": "user", "content": PROMPT}]
                if stream:
                    with client.messages.stream(**options) as events:
                        response = events.get_final_message()
                else:
                    response = client.messages.create(**options)
            finish = {"end_turn": "stop", "max_tokens": "length"}[response.stop_reason]
            cached = response.usage.cache_read_input_tokens or 0
            return Expected("chat", stream, finish, response.usage.input_tokens + cached, response.usage.output_tokens)

        return send

    _compare([(f"{limit} tokens, stream {stream}", run(limit, stream)) for limit in LIMITS for stream in (True, False)])


def native_completion_counts_match_the_server():
    def run(limit, stream):
        def send(port):
            body = {"prompt": PROMPT, "temperature": 0, "n_predict": limit, "stream": stream}
            response = httpx.post(f"http://127.0.0.1:{port}/completion", json=body, timeout=60)
            assert response.status_code == 200, response.text
            events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
            last = json.loads(events[-1] if stream else response.text)
            finish = {"limit": "length", "eos": "stop", "word": "stop"}[last["stop_type"]]
            return Expected("text_completion", stream, finish, last["tokens_evaluated"], last["tokens_predicted"])

        return send

    _compare([(f"{limit} tokens, stream {stream}", run(limit, stream)) for limit in LIMITS for stream in (True, False)])


def chat_counts_with_reasoning_and_tools_match_the_client():
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}

    def run(prompt, stream, more):
        def send(port):
            with _openai(port) as client:
                options = {"model": "tiny", "temperature": 0, "max_tokens": 200} | more
                options["messages"] = [{"role": "user", "content": prompt}]
                if stream:
                    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
                    (finish,) = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
                    usage = chunks[-1].usage
                else:
                    response = client.chat.completions.create(**options)
                    finish, usage = response.choices[0].finish_reason, response.usage
            return Expected("chat", stream, finish, usage.prompt_tokens, usage.completion_tokens)

        return send

    cases = [("Think about it.", {}), ("Weather in Paris?", {"tools": [tool]})]
    _compare([(f"{prompt} stream {stream}", run(prompt, stream, more)) for prompt, more in cases for stream in (True, False)])
