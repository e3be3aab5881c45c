"""Requests whose targets are written in unusual ways, to real servers: each is counted exactly once, with its tokens if the
server generates any."""

from process import Tokometer, start_llama_server
from targets import BODY, CHAT, ENCODED, TARGETS, compare, exchange
from uvicorn_app import PARSERS, TOKENS, start_uvicorn


def uvicorn_requests_are_counted_once_with_their_tokens():
    for parser in PARSERS:
        with start_uvicorn(parser) as server:
            served = compare(server, TARGETS)
            assert ENCODED in served and ("http://server:1/v1/chat/completions" in served) == (parser == "httptools"), served


def uvicorn_streams_are_counted_once_with_their_tokens():
    with start_uvicorn() as server:
        streamed = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        assert ENCODED in compare(server, [CHAT, ENCODED, "/v1%2Fcompletions"], streamed, generated=TOKENS)


def uvicorn_routes_below_a_prefix_are_counted():
    settings = {"more": {"observe": {"path_prefixes": ["/mounted", "/root"]}}}
    native = {**BODY, "text": "Count."}
    targets = ["/mounted/generate", "/mounted/%67enerate", "/%6dounted%2Fgenerate", "/generate"]
    with start_uvicorn() as server:
        assert compare(server, targets, native, generated=TOKENS, **settings) == targets
    with start_uvicorn("httptools", "--root-path", "/root") as server:
        assert compare(server, ["/generate", "/%67enerate"], native, generated=TOKENS, **settings)


def llama_server_requests_are_counted_once_with_their_tokens():
    with start_llama_server() as server:
        served = compare(server, TARGETS)
        assert ENCODED in served and "/v1/chat/%u0063ompletions" in served, served
    with start_llama_server(prefix="/llm") as server:
        targets = ["/llm/v1/chat/completions", "/%6c%6cm/v1/chat/%63ompletions"]
        assert compare(server, targets, more={"observe": {"path_prefixes": ["/llm"]}}) == targets


def usage_is_requested_on_encoded_paths_in_rewrite_mode():
    rewrite = {
        "listeners": [{"listen": "0.0.0.0:1", "upstream": "127.0.0.1:1", "mode": "rewrite"}],
        "rewrite": {"include_usage": True},
    }
    with start_llama_server() as server, Tokometer(server.port, more=rewrite) as relay:
        for target in (CHAT, ENCODED):
            status, _, body = exchange(relay.port, target, {**BODY, "stream": True})
            assert status == 200 and b"[DONE]" in body, (target, status, body)
        records = relay.wait_for_records(2)
        assert [record["output_tokens_source"] for record in records] == ["usage"] * 2, records
        assert relay.total("tokometer_rewrite_requests_total", rewrite="include_usage", result="changed") == 2
