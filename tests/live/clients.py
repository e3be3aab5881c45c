"""The official anthropic, openai and ollama clients through tokometer against the simulated server."""

import anthropic
import names
import ollama
import openai
from process import Tokometer, start_sim

ANTHROPIC_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
TOKENS = 40  # Natural length of a response.
LIMITS = ((12, "length"), (200, "stop"))
CACHED = ["--cached-share", "0.5"]


def _sim():
    return start_sim(*names.SIM_QUICK, "--ttft-ms", "5", "--tokens", str(TOKENS), *CACHED)


def _check_records(records, expected):
    records.sort(key=lambda record: (record["connection"], record["sequence"]))
    for record, (finish, input_tokens, output_tokens, streaming) in zip(records, expected):
        recorded = [record[name] for name in ("outcome", "finish_reasons", "input_tokens", "output_tokens", "streaming")]
        assert recorded == [names.OK, [finish], input_tokens, output_tokens, streaming], (recorded, finish, input_tokens, output_tokens)
        assert record["operation"] == "chat" and record["output_tokens_source"] in names.EXACT, record
    print(f"    {', '.join(f'{values[1]}+{values[2]}' for values in expected)}")


def anthropic_client_reads_messages_and_errors():
    with _sim() as sim, Tokometer(sim.port) as relay:
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{relay.port}", api_key="none", max_retries=0)
        expected = []
        for limit, finish in LIMITS:
            options = {"model": "sim", "max_tokens": limit, "messages": [{"role": "user", "content": "Say hello."}]}
            with client.messages.stream(**options) as stream:
                text = "".join(stream.text_stream)
                streamed = stream.get_final_message()
            assert text and text == streamed.content[0].text
            for response, streaming in ((streamed, True), (client.messages.create(**options), False)):
                assert response.stop_reason == ANTHROPIC_STOP_REASONS[finish] and response.usage.output_tokens == min(limit, TOKENS), response
                assert response.usage.cache_read_input_tokens > 0, response.usage
                input_tokens = response.usage.input_tokens + response.usage.cache_read_input_tokens
                expected.append((finish, input_tokens, response.usage.output_tokens, streaming))
        _check_records(relay.wait_for_records(len(expected)), expected)

        options |= {"extra_headers": {names.SIM_FAULT: "error-event:3"}}
        try:
            with client.messages.stream(**options) as stream:
                stream.until_done()
        except anthropic.APIStatusError as error:
            assert error.body["error"]["type"] == "api_error", error.body
        else:
            raise AssertionError("the client raised no error")
        options |= {"extra_headers": {names.SIM_FAULT: "status:529"}}
        try:
            client.messages.create(**options)
        except anthropic.APIStatusError as error:
            assert error.status_code == 529 and error.body["error"]["type"] == "overloaded_error", error.body
        else:
            raise AssertionError("the client raised no error")
        counted = client.messages.count_tokens(model="sim", messages=options["messages"])
        assert counted.input_tokens == expected[0][1], (counted, expected)
        client.close()
        outcomes = [record["outcome"] for record in relay.wait_for_records(len(expected) + 3)]
        assert outcomes[-3:-1] == ["error_in_stream", "rejected_busy"], outcomes


def openai_client_reads_responses_and_failures():
    with _sim() as sim, Tokometer(sim.port) as relay:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key="none", max_retries=0)
        expected = []
        for limit, finish in LIMITS:
            options = {"model": "sim", "input": "Say hello.", "max_output_tokens": limit}
            events = list(client.responses.create(stream=True, **options))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            streamed = events[-1].response
            assert text and text == streamed.output_text
            for response, streaming in ((streamed, True), (client.responses.create(**options), False)):
                assert response.status == {"stop": "completed", "length": "incomplete"}[finish], response
                assert response.usage.output_tokens == min(limit, TOKENS), response.usage
                # A completed response may have any finish reason except `length`, so the record contains only
                # `completed`.
                outcome = {"stop": "completed"}.get(finish, finish)
                expected.append((outcome, response.usage.input_tokens, response.usage.output_tokens, streaming))
        records = relay.wait_for_records(len(expected))
        _check_records(records, expected)
        assert all(record["cached_tokens"] == response.usage.input_tokens_details.cached_tokens > 0 for record in records)

        events = list(client.responses.create(stream=True, **options, extra_headers={names.SIM_FAULT: "error-event:3"}))
        assert events[-1].type == "response.failed", events[-1]
        client.close()
        record = relay.wait_for_records(len(expected) + 1)[-1]
        assert record["outcome"] == "error_in_stream", record


def ollama_client_reads_chat_and_generate():
    with _sim() as sim, Tokometer(sim.port) as relay:
        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}")
        messages = [{"role": "user", "content": "Say hello."}]
        expected = []
        for limit, finish in LIMITS:
            options = {"num_predict": limit}
            for streaming in (True, False):
                for operation, send in (
                    ("chat", lambda: client.chat(model="sim", messages=messages, options=options, stream=streaming)),
                    ("text_completion", lambda: client.generate(model="sim", prompt="Say hello.", options=options, stream=streaming)),
                ):
                    response = send()
                    last = list(response)[-1] if streaming else response
                    assert last.done and last.done_reason == finish and last.eval_count == min(limit, TOKENS), last
                    expected.append((operation, finish, last.prompt_eval_count, last.eval_count, streaming))
        records = relay.wait_for_records(len(expected))
        records.sort(key=lambda record: (record["connection"], record["sequence"]))
        fields = ("operation", "finish_reasons", "input_tokens", "output_tokens", "streaming")
        for record, (operation, finish, *rest) in zip(records, expected):
            assert [record[name] for name in fields] == [operation, [finish], *rest], (record, operation, finish, rest)
            assert record["outcome"] == names.OK and record["engine"] == "ollama", record
            assert record["output_tokens_source"] in names.EXACT and record["queue_time_ms"] is not None, record
        print(f"    {', '.join(f'{values[2]}+{values[3]}' for values in expected)}")

        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}", headers={names.SIM_FAULT: "error-event:3"})
        try:
            list(client.chat(model="sim", messages=messages, stream=True))
        except ollama.ResponseError as error:
            assert "running the model" in error.error, error
        else:
            raise AssertionError("the client raised no error")
        assert relay.wait_for_records(len(expected) + 1)[-1]["outcome"] == "error_in_stream"


def openai_client_completes_a_realtime_session():
    with _sim() as sim, Tokometer(sim.port) as relay:
        address = f"127.0.0.1:{relay.port}/v1"
        client = openai.OpenAI(base_url=f"http://{address}", websocket_base_url=f"ws://{address}", api_key="none", max_retries=0)
        expected = []
        with client.realtime.connect(model="sim") as session:
            assert session.recv().type == "session.created"
            session.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            assert session.recv().type == "session.updated"
            content = [{"type": "input_text", "text": "Say hello."}]
            session.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            assert session.recv().type == "conversation.item.added"
            for limit, finish in LIMITS:
                session.response.create(response={"max_output_tokens": limit})
                text = ""
                while (event := session.recv()).type != "response.done":
                    text += event.delta if event.type == "response.output_text.delta" else ""
                response = event.response
                assert response.status == {"stop": "completed", "length": "incomplete"}[finish], response
                assert text and response.output[0].content[0].text == text, (text, response)
                assert response.usage.output_tokens == min(limit, TOKENS), response.usage
                expected.append(({"stop": "completed"}.get(finish, finish), response.usage))
        handshake, *records = relay.wait_for_records(1 + len(expected))
        assert handshake["outcome"] == names.OK and handshake["output_tokens"] is None, handshake
        for record, (finish, usage) in zip(records, expected):
            recorded = [record[name] for name in ("operation", "outcome", "finish_reasons", "input_tokens", "output_tokens", "output_tokens_source")]
            assert recorded == ["realtime", names.OK, [finish], usage.input_tokens, usage.output_tokens, "usage"], (recorded, usage)
            assert record["cached_tokens"] == usage.input_token_details.cached_tokens > 0, record
            assert record["time_to_first_token_ms"] is not None, record
        print(f"    {', '.join(f'{usage.input_tokens}+{usage.output_tokens}' for _, usage in expected)}")
