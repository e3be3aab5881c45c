"""A real uvicorn with a small app in place of vLLM and SGLang, which run on uvicorn too: their routes, with canned tokens.

`start_uvicorn` starts it with either HTTP parser. Each response names the handler in the header `x-handler`."""

import importlib.util
import json
import sys
from pathlib import Path

PARSERS = ("httptools", "h11")
TOKENS = 7
INPUT_TOKENS = 10


def create_app():
    """The app, for uvicorn's option --factory. Run in uvicorn's process only."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route, WebSocketRoute

    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": TOKENS, "total_tokens": INPUT_TOKENS + TOKENS}

    def events(kind, choice):
        base = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "tiny"}
        for at in range(TOKENS):
            finish = "stop" if at == TOKENS - 1 else None
            yield {**base, "choices": [{"index": 0, **choice(f" {at}"), "finish_reason": finish}]}
        yield {**base, "choices": [], "usage": usage}

    def generation(name, kind, chunk, whole):
        async def handler(request):
            body = await request.body()
            headers = {"x-handler": name}
            if json.loads(body or b"{}").get("stream"):
                lines = [f"data: {json.dumps(event)}\n\n" for event in events(kind, chunk)] + ["data: [DONE]\n\n"]
                return StreamingResponse(iter(lines), media_type="text/event-stream", headers=headers)
            choice = {"index": 0, **whole, "finish_reason": "stop"}
            response = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "tiny", "choices": [choice], "usage": usage}
            return JSONResponse(response, headers=headers)

        return handler

    chat = generation(
        "chat",
        "chat.completion",
        lambda text: {"delta": {"role": "assistant", "content": text}},
        {"message": {"role": "assistant", "content": "seven tokens"}},
    )
    completion = generation("completions", "text_completion", lambda text: {"text": text}, {"text": "seven tokens"})

    async def generate(request):
        await request.body()
        meta = {"id": "1", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": INPUT_TOKENS, "completion_tokens": TOKENS}
        return JSONResponse({"text": "seven tokens", "meta_info": meta}, headers={"x-handler": "generate"})

    async def health(request):
        return Response(headers={"x-handler": "health"})

    async def echo(websocket):
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    api = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
        Route("/generate", generate, methods=["POST", "PUT"]),
        Route("/health", health, methods=["GET"]),
        WebSocketRoute("/v1/realtime", echo),
    ]
    return Starlette(routes=[*api, Mount("/mounted", routes=api)])


def start_uvicorn(parser="httptools", *flags):
    """uvicorn with this app and HTTP parser (one of PARSERS), ready for requests; `port` is the port it listens on."""
    from process import Process, Skip, free_port

    for package in ("uvicorn", "starlette", parser):
        if importlib.util.find_spec(package) is None:
            raise Skip(f"no Python package {package}")
    port = free_port()
    here = Path(__file__).resolve()
    argv = [sys.executable, "-m", "uvicorn", "--app-dir", str(here.parent), "--factory", f"{here.stem}:create_app"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--http", parser, "--log-level", "warning", "--no-access-log", *flags]
    server = Process("uvicorn", argv)
    server.port = port
    return server.ready(f"http://127.0.0.1:{port}/health")
