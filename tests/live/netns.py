"""The modes of `tokometer inject` in network namespaces: the arguments and rules that it writes, run for real.

Every sidecar here runs as the image's user, without capabilities and without a way to gain any, unless its mode shares the
server's user.
"""

import time

import names
from pods import POD_IP, ROOT_WITHOUT_CAPABILITIES, UNPRIVILEGED, Pod, injected
from process import until


def _one_record(pod, count=1):
    until(lambda: len(pod.records()) >= count, lambda: f"{count} requests in the access log, got {len(pod.records())}")
    assert pod.records()[-1]["outcome"] == names.OK and pod.records()[-1]["output_tokens"] >= 1, pod.records()


def _check_pod(pod, mode, result):
    """Checks that the sidecar reports this interception mode and result."""
    labels = ('server_address="127.0.0.1"', 'server_port="8000"', f'mode="{mode}"', f'result="{result}"')
    page = lambda: pod.fetch("/metrics", port=9464)[1]
    samples = lambda: [line for line in page().splitlines() if line.startswith(names.INTERCEPTION)]
    until(lambda: any(all(label in line for label in labels) for line in samples()), lambda: f"{labels}; found {samples()}")


def address_split_measures_llama_server_and_cannot_be_bypassed():
    spec = injected("address-split", "ghcr.io/ggml-org/llama.cpp:server")
    (variable,) = spec["containers"][0]["env"]
    assert variable == {"name": "LLAMA_ARG_HOST", "value": "127.0.0.1"}, variable
    with Pod() as pod:
        pod.llama_server(variable["value"])
        relay = pod.sidecar(spec["initContainers"][0]["args"])
        pod.check_response()
        status, text = pod.chat()
        assert status == 200 and "[DONE]" in text, (status, text[:300])
        _one_record(pod)
        _check_pod(pod, "address_split", "closed")
        relay.kill()
        assert pod.fetch()[0] == 0, "the server is reachable around the sidecar"
        assert pod.fetch(host="127.0.0.1", from_pod=True)[0] == 200, "the server stopped with the sidecar"


def llama_server_is_measured_over_a_unix_socket():
    spec = injected("uds", "ghcr.io/ggml-org/llama.cpp:server")
    socket = spec["containers"][0]["env"][0]["value"]
    security = spec["initContainers"][0]["securityContext"]
    assert socket.endswith(".sock") and security["runAsUser"] == 0 and security["capabilities"] == {"drop": ["ALL"]}, spec
    with Pod() as pod:
        path = str(pod.directory / "engine.sock")
        pod.llama_server(path)
        arguments = [argument.replace(socket, path) for argument in spec["initContainers"][0]["args"]]
        # The server's user, here root, but without root's capabilities.
        relay = pod.sidecar(arguments, privileges=ROOT_WITHOUT_CAPABILITIES)
        pod.check_response()
        status, text = pod.chat()
        assert status == 200 and "[DONE]" in text, (status, text[:300])
        _one_record(pod)
        relay.kill()
        assert pod.fetch(host="127.0.0.1", from_pod=True)[0] == 0, "the server listens on TCP too"


def killed_sidecar_in_shadow_bind_loses_only_its_connections():
    spec = injected("shadow-bind", "vllm/vllm-openai")
    arguments = spec["initContainers"][0]["args"]
    assert spec["containers"][0]["args"] == ["a"], "the server's arguments were changed"
    with Pod() as pod:
        pod.start_port_sharing_server()
        pod.check_response(path="/")
        relay = pod.sidecar(arguments)
        reaches_sidecar = lambda: pod.fetch("/")[1] == "127.0.0.1"
        until(reaches_sidecar, "connections reach the sidecar")
        _check_pod(pod, "shadow_bind", "closed")
        client = pod.start_client()
        time.sleep(1)
        assert reaches_sidecar(), "the kernel still prefers the server"
        killed = time.time()
        relay.kill()
        until(lambda: pod.fetch("/")[1] not in ("", "127.0.0.1"), "connections reach the server without the sidecar")
        time.sleep(1)
        pod.sidecar(arguments)
        until(reaches_sidecar, "connections reach the sidecar again")
        time.sleep(1)
        result = pod.stop_client(client)
        print(f"    {result['responses']} responses, failed: {result['failures']}")
        assert set(result["responses"]) == {"200"} and result["responses"]["200"] > 500, result
        # One client: at most one request was in flight at the kill.
        assert len(result["failures"]) <= 1 and all(abs(at - killed) < 1 for at, _ in result["failures"]), result


def bypassable_server_is_reported():
    spec = injected("explicit", "vllm/vllm-openai")
    with Pod() as pod:
        pod.program("server", ["sim", "--listen", "0.0.0.0:8000", *names.SIM_UNPACED])
        pod.sidecar(spec["initContainers"][0]["args"])
        pod.check_response(port=15080)
        _check_pod(pod, "other_port", "open")


def only_redirect_needs_net_admin():
    spec = injected("redirect", "vllm/vllm-openai", "--redirect-image", "nft")
    init, sidecar = spec["initContainers"][:2]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}, init
    with Pod() as pod:
        pod.program("server", ["sim", "--listen", "0.0.0.0:8000", *names.SIM_UNPACED])
        pod.check_response()
        program, *arguments = init["command"]
        assert program == "nft", init
        nft = [pod.nft(), *arguments]
        unprivileged = pod.run([*UNPRIVILEGED, *nft])
        assert unprivileged.returncode != 0 and "Operation not permitted" in unprivileged.stderr, f"without any capability: {unprivileged}"
        allowed = ["setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all,+net_admin", "--no-new-privs"]
        for _ in range(2):
            added = pod.run([*allowed, *nft])
            assert added.returncode == 0, added.stderr
        rules = pod.run([nft[0], "list", "ruleset"]).stdout
        assert rules.count("redirect to :15080") == 1, f"an init container that runs again adds a second rule: {rules}"
        assert pod.fetch()[0] == 0, "connections are not redirected to the sidecar, which is not running yet"
        pod.sidecar(sidecar["args"])
        pod.check_response()
        status, text = pod.chat()
        assert status == 200 and "[DONE]" in text, (status, text[:300])
        _one_record(pod)
        before = len(pod.records())
        for host in ("127.0.0.1", POD_IP):
            assert pod.chat(host=host, from_pod=True)[0] == 200
        pod.chat()
        _one_record(pod, before + 1)
        assert len(pod.records()) == before + 1, "requests inside the pod are redirected too"
