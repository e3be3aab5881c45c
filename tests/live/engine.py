"""A real llama-server with the official openai client through tokometer: its records match the values of the client and the server."""

import socketserver
import statistics
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2 as httpx
import openai

import names
from collector import Collector
from process import Tokometer, get, start_llama_server, until

PROMPTS = ["Say hello.", "Count.", "Emoji please.", "Loop.", "Think about it."]
STREAMS = 20

# Client and relay time the same moment at the two ends of a loopback connection. They differ by two passes through the
# kernel, the client's own work, and scheduling delays: this noise is measured in the same run with a server that
# responds immediately. The relay may add at most this much to it, in the median and in the worst case.
ADDED_MEDIAN_MS = 2.0
ADDED_WORST_MS = 25.0
# The same limit for the median with 20 concurrent streams. It is higher, because 20 client threads, a server and a
# relay on two cores delay each other. The noise is measured with as many streams from the server that responds
# immediately.
LOADED_MEDIAN_MS = 50.0
# The relay receives a request after the client began to send it, and a response before the client does; only the
# rounding of the access log can reverse that.
ROUNDING_MS = 0.5


class _Wire(httpx.HTTPTransport):
    """Measures the times of a request at the socket."""

    def handle_request(self, request):
        self.sent = time.perf_counter()
        self.first_body = None
        response = super().handle_request(request)
        chunks, wire = response.stream, self

        class Timed(httpx.SyncByteStream):
            def __iter__(self):
                for chunk in chunks:
                    if wire.first_body is None:
                        wire.first_body = time.perf_counter()
                    yield chunk

            def close(self):
                chunks.close()

        return httpx.Response(response.status_code, headers=response.headers, stream=Timed(), extensions=response.extensions)

    def first_body_ms(self):
        return (self.first_body - self.sent) * 1000.0


def _client(port):
    wire = _Wire()
    http = httpx.Client(transport=wire, timeout=60.0)
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, http_client=http), wire


def _stream(client, prompt, request_id, **more):
    """Reads a streamed response to its end; returns its usage."""
    usage = None
    options = {"model": "tiny", "temperature": 0, "max_tokens": 200, "stream_options": {"include_usage": True}} | more
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    for chunk in client.chat.completions.create(
        messages=messages, stream=True, extra_headers={"x-request-id": request_id}, **options
    ):
        usage = chunk.usage or usage
    assert usage is not None, "the server sent no usage"
    return usage


class _Server(socketserver.ThreadingTCPServer):
    request_queue_size = STREAMS
    daemon_threads = True


class _ImmediateServer(socketserver.StreamRequestHandler):
    """Responds to every request immediately, with a stream of one token."""

    HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    disable_nagle_algorithm = True

    def handle(self):
        try:
            self.respond()
        except ConnectionError:
            pass  # The client disconnected.

    def respond(self):
        length = 0
        for line in iter(self.rfile.readline, b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
            if line == b"\r\n":
                self.rfile.read(length)
                self.wfile.write(self.HEADERS)
                for event in (self.EVENT, self.USAGE + b"data: [DONE]\n\n"):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.write(b"0\r\n\r\n")


@contextmanager
def _immediate_server():
    """Starts the immediate server; yields its port."""
    with _Server(("127.0.0.1", 0), _ImmediateServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _concurrent_streams(port):
    """Results of concurrent clients: request id, usage, milliseconds to the first bytes of the body."""
    barrier = threading.Barrier(STREAMS)

    def run_client(number):
        client, wire = _client(port)
        request_id = f"stream-{number}"
        barrier.wait()
        usage = _stream(client, PROMPTS[number % len(PROMPTS)], request_id, max_tokens=100 + 7 * number)
        return request_id, usage, wire.first_body_ms()

    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(run_client, range(STREAMS)))


def _noise_ms(prompts):
    """Duration of these requests with a server that responds immediately: the client's own time and the loopback's."""
    with _immediate_server() as port:
        client, wire = _client(port)
        _stream(client, "Say hello.", "warm-up")
        times = []
        for prompt in prompts:
            _stream(client, prompt, "noise", max_tokens=20)
            times.append(wire.first_body_ms())
        client.close()
    return times


def _long_prompt():
    """A prompt that no cache holds, long enough for its processing time to be well above the compared differences."""
    context = f"{uuid.uuid4()} " + "The quick brown fox jumps over the lazy dog. " * 40
    return [{"role": "system", "content": context}, {"role": "user", "content": "Say hello."}]


def _by_request_id(records):
    return {record["request_id"]: record for record in records}


def counts_of_twenty_concurrent_streams_match_the_server():
    with _immediate_server() as port:
        median_noise = statistics.median(first_ms for _, _, first_ms in _concurrent_streams(port))
    with start_llama_server() as server, Tokometer(server.port) as relay:
        responses = _concurrent_streams(relay.port)
        records = _by_request_id(relay.wait_for_records(STREAMS))
        late = []
        for request_id, usage, first_ms in responses:
            record = records[request_id]
            recorded = (record["input_tokens"], record["output_tokens"], record["output_tokens_source"], record["outcome"])
            assert recorded == (usage.prompt_tokens, usage.completion_tokens, "usage", names.OK), f"{request_id}: {recorded}, {usage}"
            assert record["streaming"] is True and record["status"] == 200 and record["engine"] == "llama_cpp", record
            late.append(first_ms - record["time_to_first_token_ms"])
        median = statistics.median(late)
        print(
            f"    client minus relay, first token: median {median:.2f} ms, worst {max(late):.2f} ms, {STREAMS} at a time; noise at"
            f" the same load: median {median_noise:.2f} ms"
        )
        assert min(late) > -ROUNDING_MS, f"the relay recorded a first token {-min(late):.2f} ms after the client received it"
        assert median < median_noise + LOADED_MEDIAN_MS, f"median {median:.2f} ms, noise {median_noise:.2f} ms"

        total = sum(usage.completion_tokens for _, usage, _ in responses)
        until(lambda: relay.total(names.OUTPUT_TOKENS) == total, lambda: f"{names.OUTPUT_TOKENS} = {total}, is {relay.total(names.OUTPUT_TOKENS)}")
        assert relay.total(names.REQUESTS, outcome=names.OK) == STREAMS
        assert relay.total(names.FIRST_TOKEN_COUNT) == STREAMS
        until(lambda: relay.total(names.IN_FLIGHT) == 0, "no request in flight")


def first_token_times_match_the_client():
    noise = _noise_ms([_long_prompt() for _ in range(20)])
    with start_llama_server() as server, Tokometer(server.port) as relay:
        client, wire = _client(relay.port)
        _stream(client, "Say hello.", "warm-up")
        firsts = []
        for number in range(20):
            _stream(client, _long_prompt(), f"turn-{number}", max_tokens=20)
            firsts.append(wire.first_body_ms())
        records = _by_request_id(relay.wait_for_records(21))
        late = [first - records[f"turn-{n}"]["time_to_first_token_ms"] for n, first in enumerate(firsts)]
        median, median_noise = statistics.median(late), statistics.median(noise)
        print(
            f"    client minus relay, first token: median {median:.2f} ms, worst {max(late):.2f} ms; loopback noise:"
            f" median {median_noise:.2f} ms, worst {max(noise):.2f} ms; first token after {statistics.median(firsts):.1f} ms"
        )
        assert min(late) > -ROUNDING_MS, f"the relay recorded a first token {-min(late):.2f} ms after the client received it"
        assert median < median_noise + ADDED_MEDIAN_MS, f"median {median:.2f} ms, noise {median_noise:.2f} ms"
        assert max(late) < max(noise) + ADDED_WORST_MS, f"worst {max(late):.2f} ms, noise {max(noise):.2f} ms"


def non_streamed_response_is_counted():
    with start_llama_server() as server, Tokometer(server.port) as relay:
        client, _ = _client(relay.port)
        response = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Count."}], temperature=0, max_tokens=200
        )
        (record,) = relay.wait_for_records(1)
        assert record["streaming"] is False and record["outcome"] == names.OK, record
        assert record["output_tokens"] == response.usage.completion_tokens, (record, response.usage)
        assert record["input_tokens"] == response.usage.prompt_tokens, (record, response.usage)


def aborted_stream_keeps_partial_tokens():
    with start_llama_server() as server, Tokometer(server.port) as relay:
        client, _ = _client(relay.port)
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Loop."}],
            temperature=0,
            max_tokens=3000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        read = 0
        for chunk in stream:
            read += bool(chunk.choices and chunk.choices[0].delta.content)
            if read == 5:
                break
        stream.close()
        client.close()
        (record,) = relay.wait_for_records(1)
        assert record["outcome"] == names.ABORTED, record
        assert record["output_tokens_source"] == names.LOWER_BOUND, record
        assert read <= record["output_tokens"] < 3000, record
        print(f"    read {read} tokens, then disconnected: {record['output_tokens']} had been relayed")
        until(lambda: relay.total(names.OUTPUT_TOKENS) == record["output_tokens"], "the metrics contain the partial tokens")
        assert relay.total(names.REQUESTS, outcome=names.ABORTED) == 1


def error_response_reaches_the_client_unmodified():
    with start_llama_server() as server, Tokometer(server.port) as relay:
        messages = [{"role": "user", "content": "hi"}]
        bodies = []
        for port in (server.port, relay.port):
            client, _ = _client(port)
            try:
                client.chat.completions.create(model="tiny", messages=messages, extra_body={"grammar": "root ::= ["})
            except openai.APIStatusError as error:
                bodies.append((error.status_code, error.body))
        assert len(bodies) == 2 and bodies[0] == bodies[1] and 400 <= bodies[0][0] < 600, bodies
        (record,) = relay.wait_for_records(1)
        assert record["status"] == bodies[0][0] and record["outcome"] in ("http_4xx", "http_5xx"), record


def no_prompt_response_or_secret_is_exported():
    secret, question, response = "key-5f1c9", "Say hello.", "small language model"
    with Collector() as collector, start_llama_server() as server:
        with Tokometer(server.port, otlp=collector.url, log_level="trace") as relay:
            for streamed in (False, True):
                body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "stream": streamed}
                body |= {"temperature": 0, "max_tokens": 60, "user": "person-77"}
                headers = {"authorization": f"Bearer {secret}", "cookie": f"session={secret}"}
                reply = httpx.post(f"http://127.0.0.1:{relay.port}/v1/chat/completions", json=body, headers=headers)
                assert reply.status_code == 200 and (streamed or response in reply.text), reply.text
            relay.wait_for_records(2)
            until(lambda: {path for _, path, _ in collector.pushes} == {"/v1/metrics", "/v1/traces"}, "both signals are pushed", 20)
            pages = [get(f"http://127.0.0.1:{relay.admin}/{path}")[1] for path in ("metrics", "config")]
            relay.terminate()
            assert relay.wait(10) == 0
            exported = [relay.output(), relay.access_log.read_text(), *pages]
            exported += [body.decode("latin-1") for _, _, body in collector.pushes]
            for text in (secret, question, response, "language", "person-77"):
                assert not any(text in output for output in exported), f"{text!r} is in {[text in output for output in exported]}"
            print(f"    {sum(map(len, exported)) >> 10} KiB of logs, metrics, spans and pages searched")


def engine_state_matches_its_page_and_is_opt_in():
    def page(server):
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(get(f"http://127.0.0.1:{server.port}/metrics")[1])
        return {sample.name: sample.value for family in families for sample in family.samples}

    def engine_state(relay):
        return {name: value for (name, _), value in relay.metrics().items() if name.startswith("tokometer_engine_")}

    with start_llama_server() as server:
        with Tokometer(server.port) as unscraped, Tokometer(server.port, scrape={"enabled": True, "interval": "200ms"}) as relay:
            until(lambda: "tokometer_engine_requests_running" in engine_state(relay), "the page is read", 20)
            assert engine_state(relay)["tokometer_engine_prefix_cache_queries_total"] == 0.0, engine_state(relay)
            before = page(server)
            client, _ = _client(relay.port)
            for number, prompt in enumerate(PROMPTS):
                _stream(client, prompt, f"state-{number}", max_tokens=40)
            after = page(server)
            prompt_counters = ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
            prompt_tokens = sum(after[name] - before[name] for name in prompt_counters)
            assert prompt_tokens > 0
            until(
                lambda: engine_state(relay)["tokometer_engine_prefix_cache_queries_total"] == prompt_tokens,
                lambda: f"{prompt_tokens} prompt tokens are reported: {engine_state(relay)}",
                20,
            )
            state = engine_state(relay)
            hits = after["llamacpp:prompt_tokens_cached_total"] - before["llamacpp:prompt_tokens_cached_total"]
            assert state["tokometer_engine_prefix_cache_hits_total"] == hits, (state, hits)
            # The server releases a request shortly after its response, and its metrics page may have been scraped in
            # between.
            idle = {"tokometer_engine_requests_running": 0.0, "tokometer_engine_requests_waiting": 0.0}
            until(lambda: idle.items() <= engine_state(relay).items(), lambda: f"nothing is running or waiting: {engine_state(relay)}", 20)
            assert state["tokometer_engine_scrape_attempts_total"] > 1, state
            off = engine_state(unscraped)
            assert "tokometer_engine_requests_running" not in off and off["tokometer_engine_scrape_attempts_total"] == 0.0, off
            print(f"    {prompt_tokens} prompt tokens, {hits:.0f} of them cached, according to both")
