"""A real Ollama with its own client library, through tokometer (`make live-ollama`; not part of `make test`)."""

import os
import shutil
import subprocess
import tempfile

import httpx2 as httpx
import names
import ollama
import openai
from process import MODEL, Process, Skip, Tokometer, free_port

LIMITS = (1, 20, 400)
# One thread: several synchronize by spinning, which takes minutes on a busy machine.
OPTIONS = {"temperature": 0, "num_thread": 1}


def _start(home):
    """An Ollama with the tiny chat model; loading takes long only on a busy machine."""
    program = shutil.which("ollama")
    if not program:
        raise Skip("no ollama; `make live-ollama` builds it if Go is installed")
    port = free_port()
    os.environ |= {"OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_NUM_PARALLEL": "1", "HOME": home, "OLLAMA_MODELS": f"{home}/models"}
    server = Process("ollama", [program, "serve"])
    server.port = port
    server.ready(f"http://127.0.0.1:{port}/api/version")
    modelfile = MODEL.with_suffix(".Modelfile")
    created = subprocess.run([program, "create", "tiny", "-f", str(modelfile)], cwd=modelfile.parent, capture_output=True, text=True, timeout=60)
    assert created.returncode == 0, created.stderr
    # Loads the model, so that no request waits for it.
    httpx.post(f"http://127.0.0.1:{port}/api/generate", json={"model": "tiny", "options": OPTIONS}, timeout=60).raise_for_status()
    return server


def native_route_counts_match_the_server():
    with tempfile.TemporaryDirectory(prefix="ollama-") as home, _start(home) as server, Tokometer(server.port) as relay:
        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}")
        messages = [{"role": "user", "content": "Count."}]
        expected = []
        for limit in LIMITS:
            options = OPTIONS | {"num_predict": limit}
            for streaming in (True, False):
                for operation, send in (
                    ("chat", lambda: client.chat(model="tiny", messages=messages, options=options, stream=streaming)),
                    ("text_completion", lambda: client.generate(model="tiny", prompt="Count.", options=options, stream=streaming)),
                ):
                    response = send()
                    last = list(response)[-1] if streaming else response
                    expected.append((operation, last.done_reason, last))
        records = relay.wait_for_records(len(expected))
        records.sort(key=lambda record: (record["connection"], record["sequence"]))
        for record, (operation, finish, last) in zip(records, expected):
            recorded = [record[name] for name in ("operation", "finish_reasons", "input_tokens", "output_tokens", "outcome", "engine")]
            assert recorded == [operation, [finish], last.prompt_eval_count, last.eval_count, names.OK, "ollama"], (recorded, last)
            queue = (last.total_duration - last.load_duration - last.prompt_eval_duration - (last.eval_duration or 0)) / 1e6
            assert abs(record["queue_time_ms"] - queue) < 0.01, (record["queue_time_ms"], queue)
        print(f"    {', '.join(f'{last.prompt_eval_count}+{last.eval_count}' for _, _, last in expected)}")


def thinking_tools_and_the_openai_route_are_counted():
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    with tempfile.TemporaryDirectory(prefix="ollama-") as home, _start(home) as server, Tokometer(server.port) as relay:
        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}")
        options = OPTIONS | {"num_predict": 200}
        expected = []
        for prompt, more in (("Think about it.", {"think": True}), ("Weather in Paris?", {"tools": [tool]})):
            chunks = list(client.chat(model="tiny", messages=[{"role": "user", "content": prompt}], options=options, stream=True, **more))
            expected.append((chunks[-1].prompt_eval_count, chunks[-1].eval_count))
        with openai.OpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key="none", max_retries=0) as compatible:
            chunks = list(
                compatible.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "Count."}], temperature=0, stream=True, stream_options={"include_usage": True}
                )
            )
        expected.append((chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens))
        records = relay.wait_for_records(len(expected))
        records.sort(key=lambda record: (record["connection"], record["sequence"]))
        for record, (input_tokens, output_tokens) in zip(records, expected):
            recorded = [record[name] for name in ("input_tokens", "output_tokens", "outcome", "engine")]
            assert recorded == [input_tokens, output_tokens, names.OK, "ollama"], (recorded, input_tokens, output_tokens)
        print(f"    {', '.join(f'{input_tokens}+{output_tokens}' for input_tokens, output_tokens in expected)}")


def missing_model_and_abort_have_different_outcomes():
    with tempfile.TemporaryDirectory(prefix="ollama-") as home, _start(home) as server, Tokometer(server.port) as relay:
        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}")
        try:
            client.chat(model="nope", messages=[{"role": "user", "content": "x"}])
        except ollama.ResponseError as error:
            assert error.status_code == 404, error
        stream = client.chat(model="tiny", messages=[{"role": "user", "content": "Loop."}], options=OPTIONS | {"num_predict": 3000}, stream=True)
        read = [next(stream) for _ in range(5)]
        stream.close()
        client._client.close()
        refused, aborted = relay.wait_for_records(2)
        assert refused["outcome"] == "http_4xx", refused
        assert aborted["outcome"] == names.ABORTED and aborted["output_tokens"] >= len(read), aborted
