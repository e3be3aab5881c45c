"""A real llama-server through rewrite mode: the official client and curl get the same responses as without tokometer,
and counts are exact."""

import json
import shutil
import subprocess

import openai

import names
from process import Skip, Tokometer, start_llama_server

PROMPTS = ["Say hello.", "Count.", "Emoji please."]
REWRITE = {
    "listeners": [{"listen": "0.0.0.0:1", "upstream": "127.0.0.1:1", "mode": "rewrite"}],
    "rewrite": {"include_usage": True, "traceparent": True, "request_id": True},
}
# Members that differ between two runs of the same request.
VOLATILE = {"id", "created", "timings"}


def _mask(event):
    return {name: None if name in VOLATILE else value for name, value in event.items()}


def _request_body(prompt, **more):
    return {"model": "tiny", "temperature": 0, "max_tokens": 100, "messages": [{"role": "user", "content": prompt}]} | more


def _client(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def openai_client_gets_equal_events_and_exact_counts():
    with start_llama_server() as server, Tokometer(server.port, more=REWRITE) as relay:
        direct, proxied = _client(server.port), _client(relay.port)
        expected = []
        for prompt in PROMPTS:
            # The first request fills the server's cache, so that both compared requests use the same cached prompt.
            list(direct.chat.completions.create(stream=True, **_request_body(prompt)))
            plain, rewritten = (
                [_mask(chunk.model_dump(exclude_unset=True)) for chunk in client.chat.completions.create(stream=True, **_request_body(prompt))]
                for client in (direct, proxied)
            )
            assert plain == rewritten, (plain[-2:], rewritten[-2:])
            assert all(chunk["choices"] and "usage" not in chunk for chunk in rewritten), rewritten[-1]
            direct_response, proxied_response = (client.chat.completions.create(**_request_body(prompt)) for client in (direct, proxied))
            assert direct_response.choices == proxied_response.choices, (direct_response, proxied_response)
            chunks = list(proxied.chat.completions.create(stream=True, stream_options={"include_usage": True}, **_request_body(prompt)))
            usage = chunks[-1].usage
            assert usage.completion_tokens == direct_response.usage.completion_tokens, (usage, direct_response.usage)
            expected += [usage.completion_tokens] * 3
        records = relay.wait_for_records(len(expected))
        assert [record["output_tokens"] for record in records] == expected, (records, expected)
        assert all(record["output_tokens_source"] == "usage" and record["outcome"] == names.OK for record in records), records
        assert relay.total("tokometer_rewrite_requests_total", rewrite="include_usage", result="changed") == len(PROMPTS)
        print(f"    {len(expected)} requests, {sum(expected)} tokens")


def curl_gets_the_same_events():
    if not shutil.which("curl"):
        raise Skip("no curl")
    with start_llama_server() as server, Tokometer(server.port, more=REWRITE) as relay:
        for prompt in PROMPTS:
            def send(port):
                argv = ["curl", "-sSN", f"http://127.0.0.1:{port}/v1/chat/completions", "-H", "content-type: application/json"]
                argv += ["-d", json.dumps(_request_body(prompt, stream=True))]
                return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60).stdout

            send(server.port)
            plain, rewritten = send(server.port), send(relay.port)

            def events(text):
                parts = text.split("\n\n")
                assert parts[-1] == "", parts[-1]
                data = [part.removeprefix("data: ") for part in parts[:-1]]
                return [json.loads(part, object_pairs_hook=list) if part != "[DONE]" else part for part in data]

            def masked(event):
                return [(name, None if name in VOLATILE else value) for name, value in event] if isinstance(event, list) else event

            assert [*map(masked, events(plain))] == [*map(masked, events(rewritten))], (plain[-900:], rewritten[-900:])
