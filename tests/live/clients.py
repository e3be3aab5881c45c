"""The official anthropic, openai and ollama clients through tokometer against the simulated server."""

import anthropic
import names
import ollama
import openai
from process import Tokometer, start_sim

ANTHROPIC_SAYS = {"stop": "end_turn", "length": "max_tokens"}
TOKENS = 40  # Natural length of a response.
LIMITS = ((12, "length"), (200, "stop"))
CACHED = ["--cached-share", "0.5"]


def _sim():
    return start_sim(*names.SIM_QUICK, "--ttft-ms", "5", "--tokens", str(TOKENS), *CACHED)


def _hold(records, expected):
    records.sort(key=lambda record: (record["connection"], record["sequence"]))
    for record, (finish, input_tokens, output_tokens, streaming) in zip(records, expected):
        said = [record[name] for name in ("outcome", "finish_reasons", "input_tokens", "output_tokens", "streaming")]
        assert said == [names.OK, [finish], input_tokens, output_tokens, streaming], (said, finish, input_tokens, output_tokens)
        assert record["operation"] == "chat" and record["output_tokens_source"] in names.EXACT, record
    print(f"    {', '.join(f'{told[1]}+{told[2]}' for told in expected)}")


def the_anthropic_client_reads_messages_and_their_errors():
    with _sim() as sim, Tokometer(sim.port) as relay:
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{relay.port}", api_key="none", max_retries=0)
        expected = []
        for limit, finish in LIMITS:
            options = {"model": "sim", "max_tokens": limit, "messages": [{"role": "user", "content": "Say hello."}]}
            with client.messages.stream(**options) as stream:
                text = "".join(stream.text_stream)
                streamed = stream.get_final_message()
            assert text and text == streamed.content[0].text
            for answer, streaming in ((streamed, True), (client.messages.create(**options), False)):
                assert answer.stop_reason == ANTHROPIC_SAYS[finish] and answer.usage.output_tokens == min(limit, TOKENS), answer
                assert answer.usage.cache_read_input_tokens > 0, answer.usage
                input_tokens = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
                expected.append((finish, input_tokens, answer.usage.output_tokens, streaming))
        _hold(relay.wait_for_records(len(expected)), expected)

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


def the_openai_client_reads_responses_and_their_failures():
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
            for answer, streaming in ((streamed, True), (client.responses.create(**options), False)):
                assert answer.status == {"stop": "completed", "length": "incomplete"}[finish], answer
                assert answer.usage.output_tokens == min(limit, TOKENS), answer.usage
                                # What the API does not report is not guessed: a completed response may have any finish
                                # reason but the limit.
                told = {"stop": "completed"}.get(finish, finish)
                expected.append((told, answer.usage.input_tokens, answer.usage.output_tokens, streaming))
        records = relay.wait_for_records(len(expected))
        _hold(records, expected)
        assert all(record["cached_tokens"] == answer.usage.input_tokens_details.cached_tokens > 0 for record in records)

        events = list(client.responses.create(stream=True, **options, extra_headers={names.SIM_FAULT: "error-event:3"}))
        assert events[-1].type == "response.failed", events[-1]
        client.close()
        record = relay.wait_for_records(len(expected) + 1)[-1]
        assert record["outcome"] == "error_in_stream", record


def the_ollama_client_reads_chat_and_generate():
    with _sim() as sim, Tokometer(sim.port) as relay:
        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}")
        messages = [{"role": "user", "content": "Say hello."}]
        told = []
        for limit, finish in LIMITS:
            options = {"num_predict": limit}
            for streaming in (True, False):
                for operation, ask in (
                    ("chat", lambda: client.chat(model="sim", messages=messages, options=options, stream=streaming)),
                    ("text_completion", lambda: client.generate(model="sim", prompt="Say hello.", options=options, stream=streaming)),
                ):
                    answer = ask()
                    last = list(answer)[-1] if streaming else answer
                    assert last.done and last.done_reason == finish and last.eval_count == min(limit, TOKENS), last
                    told.append((operation, finish, last.prompt_eval_count, last.eval_count, streaming))
        records = relay.wait_for_records(len(told))
        records.sort(key=lambda record: (record["connection"], record["sequence"]))
        names_of = ("operation", "finish_reasons", "input_tokens", "output_tokens", "streaming")
        for record, (operation, finish, *rest) in zip(records, told):
            assert [record[name] for name in names_of] == [operation, [finish], *rest], (record, operation, finish, rest)
            assert record["outcome"] == names.OK and record["engine"] == "ollama", record
            assert record["output_tokens_source"] in names.EXACT and record["queue_time_ms"] is not None, record
        print(f"    {', '.join(f'{one[2]}+{one[3]}' for one in told)}")

        client = ollama.Client(host=f"http://127.0.0.1:{relay.port}", headers={names.SIM_FAULT: "error-event:3"})
        try:
            list(client.chat(model="sim", messages=messages, stream=True))
        except ollama.ResponseError as error:
            assert "running the model" in error.error, error
        else:
            raise AssertionError("the client raised no error")
        assert relay.wait_for_records(len(told) + 1)[-1]["outcome"] == "error_in_stream"


def the_openai_client_holds_a_realtime_session():
    with _sim() as sim, Tokometer(sim.port) as relay:
        address = f"127.0.0.1:{relay.port}/v1"
        client = openai.OpenAI(base_url=f"http://{address}", websocket_base_url=f"ws://{address}", api_key="none", max_retries=0)
        told = []
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
                answer = event.response
                assert answer.status == {"stop": "completed", "length": "incomplete"}[finish], answer
                assert text and answer.output[0].content[0].text == text, (text, answer)
                assert answer.usage.output_tokens == min(limit, TOKENS), answer.usage
                told.append(({"stop": "completed"}.get(finish, finish), answer.usage))
        handshake, *records = relay.wait_for_records(1 + len(told))
        assert handshake["outcome"] == names.OK and handshake["output_tokens"] is None, handshake
        for record, (finish, usage) in zip(records, told):
            said = [record[name] for name in ("operation", "outcome", "finish_reasons", "input_tokens", "output_tokens", "output_tokens_source")]
            assert said == ["realtime", names.OK, [finish], usage.input_tokens, usage.output_tokens, "usage"], (said, usage)
            assert record["cached_tokens"] == usage.input_token_details.cached_tokens > 0, record
            assert record["time_to_first_token_ms"] is not None, record
        print(f"    {', '.join(f'{usage.input_tokens}+{usage.output_tokens}' for _, usage in told)}")
