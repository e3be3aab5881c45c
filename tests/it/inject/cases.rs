//! Injection into various pods.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use serde_json::{Value, json};
use tokometer_decode::Engine;
use tokometer_operator::inject::{Mode, Options, Outcome, inject};

use super::{deployment, injected, options, skipped};

const VLLM: &str =
    "{containers: [{name: vllm, image: vllm/vllm-openai:v0.33.0, args: [--model, m], ports: [{containerPort: 8000}]}]}";

pub(super) fn with(mode: Mode) -> Options {
    Options { mode, redirect_image: Some("nft:1".to_owned()), ..options() }
}

/// The arguments of the sidecar.
pub(super) fn arguments(spec: &Value) -> Vec<&str> {
    let sidecar = spec["initContainers"].as_array().unwrap().iter().find(|c| c["name"] == "tokometer").unwrap();
    sidecar["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect()
}

#[test]
fn sidecar_is_native_first_restricted_and_probes_only_itself() {
    let (spec, _) = injected(VLLM, &options());
    let sidecar = &spec["initContainers"][0];
    assert_eq!((&sidecar["name"], &sidecar["restartPolicy"]), (&json!("tokometer"), &json!("Always")));
    assert_eq!(
        arguments(&spec)[..4],
        ["run", "--listen=[$(POD_IPS)]:8000", "--upstream=127.0.0.1:8000", "--admin=:9464"]
    );
    assert_eq!(sidecar["startupProbe"]["httpGet"], json!({"path": "/startz", "port": 9464}));
    assert_eq!(sidecar["livenessProbe"]["httpGet"], json!({"path": "/livez", "port": 9464}));
    assert_eq!(sidecar.get("readinessProbe"), None);
    assert_eq!(sidecar["lifecycle"]["preStop"]["exec"]["command"], json!(["/tokometer", "drain"]));
    assert_eq!(
        sidecar["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}})
    );
    assert_eq!(
        sidecar["resources"]["limits"],
        json!({"memory": "256Mi"}),
        "a CPU limit would show as gaps between tokens"
    );
    let fields: Vec<&Value> =
        sidecar["env"].as_array().unwrap().iter().map(|v| &v["valueFrom"]["fieldRef"]["fieldPath"]).collect();
    for path in ["metadata.name", "metadata.namespace", "metadata.uid", "status.podIPs", "spec.nodeName"] {
        assert!(fields.contains(&&json!(path)), "{path}");
    }
}

#[test]
fn run_accepts_every_flag_of_the_sidecar() {
    use tokometer::config::{Config, Environment, Flags};
    for mode in [Mode::AddressSplit, Mode::Uds, Mode::ShadowBind, Mode::PortSwap, Mode::Redirect, Mode::Explicit] {
        let (spec, _) = injected(VLLM, &with(mode));
        let given: Vec<String> =
            arguments(&spec).iter().map(|text| text.replace("$(POD_IPS)", "10.0.0.7,fd00::7")).collect();
        let value = |name: &str| given.iter().find_map(|text| text.strip_prefix(name)).map(str::to_owned);
        let set = given.iter().filter_map(|text| text.strip_prefix("--set=")).map(str::to_owned).collect();
        let flags = Flags {
            listen: value("--listen="),
            upstream: value("--upstream="),
            admin: value("--admin="),
            set,
            ..Flags::default()
        };
        assert_eq!(given.len(), 4 + flags.set.len(), "{given:?}");
        let config = Config::load(&flags, &Environment::default()).unwrap();
        let loopback = usize::from(matches!(mode, Mode::PortSwap | Mode::Uds));
        assert_eq!(config.settings.listeners.len(), 2 + loopback, "one per address family: {mode:?}");
    }
}

#[test]
fn each_engine_is_set_to_listen_on_loopback() {
    let host = json!("--host=127.0.0.1");
    for (container, name, expected, port) in [
        ("image: vllm/vllm-openai, args: [--model, m]", "args", json!(["--model", "m", host]), 8000),
        ("image: vllm/vllm-openai", "args", json!([host]), 8000),
        ("image: x, command: [vllm, serve, m, --port=9000]", "args", json!([host]), 9000),
        (
            "image: x, command: [python3, -m, vllm.entrypoints.openai.api_server], args: [--host, 0.0.0.0]",
            "args",
            json!(["--host", "0.0.0.0", host]),
            8000,
        ),
        (
            "image: x, command: [python3, -m, sglang.launch_server, --host, 0.0.0.0, --port, '31000']",
            "args",
            json!([host]),
            31_000,
        ),
        (
            "image: ghcr.io/ggml-org/llama.cpp:server, args: [-m, f]",
            "env",
            json!([{"name": "LLAMA_ARG_HOST", "value": "127.0.0.1"}]),
            8080,
        ),
        (
            "image: ghcr.io/ggml-org/llama.cpp:server, args: [--host, 0.0.0.0]",
            "args",
            json!(["--host", "0.0.0.0", "--host", "127.0.0.1"]),
            8080,
        ),
        (
            "image: x, command: [sh, -c, 'llama-server -m f'], env: [{name: LLAMA_ARG_HOST, value: 0.0.0.0}]",
            "env",
            json!([{"name": "LLAMA_ARG_HOST", "value": "127.0.0.1"}]),
            8080,
        ),
        (
            "image: ghcr.io/huggingface/text-generation-inference, args: [--model-id, m, --port, '8080']",
            "args",
            json!(["--model-id", "m", "--port", "8080", "--hostname=127.0.0.1"]),
            8080,
        ),
        (
            "image: ghcr.io/huggingface/text-generation-inference, args: [--hostname, 0.0.0.0]",
            "args",
            json!(["--hostname", "127.0.0.1"]),
            80,
        ),
        (
            "image: ghcr.io/huggingface/text-generation-inference, args: [--hostname=0.0.0.0]",
            "args",
            json!(["--hostname=127.0.0.1"]),
            80,
        ),
        ("image: ollama/ollama", "env", json!([{"name": "OLLAMA_HOST", "value": "127.0.0.1:11434"}]), 11_434),
        (
            "image: ollama/ollama, env: [{name: OLLAMA_HOST, value: '0.0.0.0:9999'}, {name: A, value: b}]",
            "env",
            json!([{"name": "OLLAMA_HOST", "value": "127.0.0.1:9999"}, {"name": "A", "value": "b"}]),
            9999,
        ),
    ] {
        let (spec, _) = injected(&format!("{{containers: [{{name: c, {container}}}]}}"), &options());
        assert_eq!(spec["containers"][0][name], expected, "{container}");
        assert!(arguments(&spec).contains(&format!("--upstream=127.0.0.1:{port}").as_str()), "{container}: {spec}");
    }
}

#[test]
fn replaced_arguments_of_the_image_are_warned_of() {
    for (container, expected) in [
        ("image: vllm", true),
        ("image: vllm, command: [], args: []", true),
        ("image: vllm, args: [m]", false),
        ("image: vllm, command: [vllm, serve]", false),
        ("image: ollama/ollama", false),
    ] {
        let (_, reports) =
            inject(&deployment(&format!("{{containers: [{{name: c, {container}}}]}}")), &options()).unwrap();
        let is_warned = reports[0].warnings.iter().any(|text| text.contains("(CMD)"));
        assert_eq!((reports[0].outcome, is_warned), (Outcome::Injected, expected), "{container}: {reports:?}");
    }
}

#[test]
fn server_on_loopback_is_not_opened() {
    let spec = "{containers: [{name: c, image: vllm, args: [--host, 127.0.0.1]}]}";
    for mode in [Mode::Auto, Mode::AddressSplit, Mode::ShadowBind, Mode::Redirect, Mode::Explicit] {
        let why = skipped(spec, &with(mode));
        assert!(
            why.contains("outside the pod") && why.contains("port-swap") && why.contains("--host"),
            "{mode:?}: {why}"
        );
    }
    for (mode, setting) in [(Mode::PortSwap, "--port=8001"), (Mode::Uds, "--uds=/run/tokometer/engine.sock")] {
        let (spec, _) = injected(spec, &with(mode));
        assert_eq!(spec["containers"][0]["args"], json!(["--host", "127.0.0.1", setting]), "{mode:?}");
        assert_eq!(arguments(&spec)[1], "--listen=127.0.0.1:8000", "{mode:?}");
    }
    let ollama = "{containers: [{name: c, image: ollama/ollama, env: [{name: OLLAMA_HOST, value: localhost}]}]}";
    assert!(skipped(ollama, &options()).contains("OLLAMA_HOST"));
    let (spec, _) = injected(ollama, &with(Mode::PortSwap));
    assert_eq!(spec["containers"][0]["env"], json!([{"name": "OLLAMA_HOST", "value": "127.0.0.1:11435"}]));
    assert_eq!(arguments(&spec)[1..3], ["--listen=127.0.0.1:11434", "--upstream=127.0.0.1:11435"]);
}

#[test]
fn killed_containers_keep_the_grace_period_of_the_pod() {
    let probe = |of: &str| format!("{of}: {{httpGet: {{path: /health, port: api}}, periodSeconds: 5}}");
    let containers = |grace: &str| {
        format!(
            "{{{grace} initContainers: [{{name: mesh, image: m, restartPolicy: Always, {startup}}}], containers: [{{name: log, image: l, {live}}}, \
             {{name: c, image: vllm, ports: [{{containerPort: 8000, name: api}}], {startup}, {live}, {ready}}}]}}",
            startup = probe("startupProbe"),
            live = probe("livenessProbe"),
            ready = probe("readinessProbe"),
        )
    };
    for (grace, expected) in [
        ("", json!(30)),
        ("terminationGracePeriodSeconds: 45,", json!(45)),
        ("terminationGracePeriodSeconds: 0,", json!(1)),
        ("terminationGracePeriodSeconds: 900,", Value::Null),
    ] {
        let (spec, _) = injected(&containers(grace), &options());
        let of = |container: &Value, probe: &str| container[probe]["terminationGracePeriodSeconds"].clone();
        let [log, server] = [&spec["containers"][0], &spec["containers"][1]];
        let all = [of(log, "livenessProbe"), of(server, "livenessProbe"), of(server, "startupProbe")];
        assert_eq!(all, [(); 3].map(|()| expected.clone()), "{grace}");
        assert_eq!(of(&spec["initContainers"][1], "startupProbe"), expected, "{grace}");
        assert_eq!(of(server, "readinessProbe"), Value::Null);
    }
    let own = "{containers: [{name: c, image: vllm, livenessProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 5}}]}";
    assert_eq!(injected(own, &options()).0["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"], 5);
}

#[test]
fn sidecar_of_a_pod_with_resources_of_its_own_has_none() {
    let spec = "{resources: {limits: {memory: 1Gi}}, containers: [{name: c, image: vllm}]}";
    let (spec, _) = injected(spec, &with(Mode::Redirect));
    for container in spec["initContainers"].as_array().unwrap() {
        assert_eq!(container.get("resources"), None, "{container}");
    }
}

#[test]
fn limit_is_no_larger_multiple_of_the_request_than_the_servers() {
    for (resources, cpu, memory) in [
        ("{limits: {cpu: 4, memory: 1Gi}, requests: {cpu: 1, memory: 512Mi}}", json!("125m"), json!("128Mi")),
        ("{limits: {cpu: 4, memory: 1Gi}, requests: {cpu: 100m, memory: 100Mi}}", json!("25m"), json!("64Mi")),
        ("{limits: {memory: 3Gi}, requests: {memory: 2Gi}}", json!("25m"), json!("171Mi")),
        ("{limits: {memory: 3Gi}}", json!("25m"), json!("256Mi")),
        ("{requests: {memory: 3Gi}}", json!("25m"), json!("64Mi")),
    ] {
        let (spec, _) =
            injected(&format!("{{containers: [{{name: c, image: vllm, resources: {resources}}}]}}"), &options());
        let requests = &spec["initContainers"][0]["resources"]["requests"];
        assert_eq!((&requests["cpu"], &requests["memory"]), (&cpu, &memory), "{resources}");
    }
}

#[test]
fn every_engine_with_known_flags_is_accepted() {
    for engine in Engine::ALL.into_iter().filter(|engine| engine.info().listen.is_some()) {
        let host = engine.info().listen.unwrap().host.names();
        let open = host.0.map_or(String::new(), |flag| format!("args: [{flag}, 0.0.0.0]"));
        let open = if open.is_empty() { "env: [{name: OLLAMA_HOST, value: 0.0.0.0}]".to_owned() } else { open };
        let chosen = Options { engine: Some(engine), ..options() };
        let (spec, _) = injected(&format!("{{containers: [{{name: c, image: mine, {open}}}]}}"), &chosen);
        assert!(arguments(&spec).contains(&format!("--set=observe.engine={}", engine.as_str()).as_str()), "{engine:?}");
    }
    let dynamo = Options { engine: Some(Engine::Dynamo), ports: vec![8000], ..options() };
    assert!(skipped("{containers: [{name: c, image: mine}]}", &dynamo).contains("of Dynamo cannot be set"));
}

#[test]
fn shell_command_gets_the_flag_in_its_text() {
    for (command, changed) in [
        ("[sh, -c, 'vllm serve m']", json!(["sh", "-c", "vllm serve --host=127.0.0.1 m"])),
        ("[/bin/bash, -lc, 'exec vllm serve m']", json!(["/bin/bash", "-lc", "exec vllm serve --host=127.0.0.1 m"])),
        ("[tini, --, bash, -c, 'vllm serve m']", json!(["tini", "--", "bash", "-c", "vllm serve --host=127.0.0.1 m"])),
        ("['sh -c \"vllm serve m\"']", json!(["sh -c \"vllm serve --host=127.0.0.1 m\""])),
        // An existing flag of the user is replaced.
        ("[sh, -c, 'vllm serve m --host 0.0.0.0']", json!(["sh", "-c", "vllm serve --host=127.0.0.1 m "])),
    ] {
        let (spec, _) =
            injected(&format!("{{containers: [{{name: c, image: vllm, command: {command}}}]}}"), &options());
        assert_eq!(spec["containers"][0]["command"], changed, "{command}");
        assert_eq!(spec["containers"][0].get("args"), None);
    }
}

#[test]
fn command_without_a_known_start_is_skipped_and_redirect_suggested() {
    for command in ["[/opt/vllm-start.sh]", "[bash, -c, 'source /opt/run-vllm']"] {
        let spec = format!("{{containers: [{{name: c, image: vllm, command: {command}}}]}}");
        let why = skipped(&spec, &options());
        assert!(why.contains("redirect") && why.contains("--host"), "{why}");
        let (spec, _) = injected(&spec, &with(Mode::Redirect));
        assert_eq!(spec["containers"][0].get("args"), None);
    }
}

#[test]
fn each_port_gets_a_listener() {
    use tokometer::config::{Config, Environment, Flags};
    let spec = "{containers: [{name: c, image: vllm, ports: [{containerPort: 8000}, {containerPort: 8001}]}]}";
    let ports = |ports: &[u16], mode| Options { ports: ports.to_vec(), ..with(mode) };
    assert!(skipped(spec, &ports(&[8000], Mode::Auto)).contains("data-parallel rank"));
    assert!(skipped(spec, &ports(&[8000, 8001], Mode::PortSwap)).contains("serves one port"));
    let (spec, notes) = injected(spec, &ports(&[8000, 8001], Mode::Auto));
    assert!(notes.iter().any(|note| note.contains("8000, 8001")), "{notes:?}");
    let listeners: Vec<String> = arguments(&spec)[1..3]
        .iter()
        .map(|text| text.strip_prefix("--listener=").unwrap().replace("$(POD_IPS)", "10.0.0.7,fd00::7"))
        .collect();
    let config = Config::load(&Flags { listeners, ..Flags::default() }, &Environment::default()).unwrap();
    let pairs = config.settings.listeners.iter().map(|one| (one.listen.to_string(), one.upstream.to_string()));
    assert_eq!(
        pairs.collect::<Vec<_>>(),
        [
            ("10.0.0.7:8000".to_owned(), "127.0.0.1:8000".to_owned()),
            ("[fd00::7]:8000".to_owned(), "127.0.0.1:8000".to_owned()),
            ("10.0.0.7:8001".to_owned(), "127.0.0.1:8001".to_owned()),
            ("[fd00::7]:8001".to_owned(), "127.0.0.1:8001".to_owned()),
        ]
    );
}

#[test]
fn port_is_detected_or_required() {
    for (container, port) in [
        ("args: [--port, '8100'], ports: [{containerPort: 9000}]", 8100),
        (
            "args: [--port=$(P)], env: [{name: P, value: '8100'}], ports: [{containerPort: 8100}, {containerPort: 9000}]",
            8100,
        ),
        ("command: [sh, -c, 'vllm serve m --port $P'], ports: [{containerPort: 9000}]", 9000),
        ("ports: [{containerPort: 9000}]", 9000),
        ("ports: [{containerPort: 8000}, {containerPort: 9000}]", 8000),
        ("ports: [{containerPort: 7000, name: http}, {containerPort: 9000}]", 7000),
        ("ports: [{containerPort: 7000}, {containerPort: 53, protocol: UDP}]", 7000),
    ] {
        let (spec, _) = injected(&format!("{{containers: [{{name: c, image: vllm, {container}}}]}}"), &options());
        assert!(arguments(&spec).contains(&format!("--listen=[$(POD_IPS)]:{port}").as_str()), "{container}");
    }
    // The admin port must differ from the ports of the server's traffic.
    let taken = Options { ports: vec![9464], ..options() };
    assert!(skipped("{containers: [{name: c, image: vllm}]}", &taken).contains("--admin-port"));
    let next = Options { ports: vec![9463], ..with(Mode::PortSwap) };
    assert!(skipped("{containers: [{name: c, image: vllm}]}", &next).contains("--admin-port 9465"));
    let several = "{containers: [{name: c, image: vllm, ports: [{containerPort: 7000}, {containerPort: 9000}]}]}";
    assert!(skipped(several, &options()).contains("--port"));
    let (spec, _) = injected(several, &Options { ports: vec![7000], ..options() });
    assert!(arguments(&spec).contains(&"--upstream=127.0.0.1:7000"));
    assert!(skipped("{containers: [{name: c, image: vllm, args: [--port=http]}]}", &options()).contains("`http`"));
}

#[test]
fn server_container_is_detected_or_required() {
    let spec = "{containers: [{name: log, image: fluent-bit}, {name: main, image: vllm}]}";
    let (spec, notes) = injected(spec, &options());
    assert_eq!(spec["containers"][1]["args"], json!(["--host=127.0.0.1"]));
    assert_eq!(spec["containers"][0], json!({"name": "log", "image": "fluent-bit"}));
    assert!(notes[0].contains("main") && notes[0].contains("vLLM, recognised by its image"), "{notes:?}");
    let proxy = "{containers: [{name: p, image: vllm, command: [vllm-router]}, {name: main, image: vllm, command: [vllm, serve, m]}]}";
    let (spec, notes) = injected(proxy, &options());
    assert_eq!(spec["containers"][1]["args"], json!(["--host=127.0.0.1"]));
    assert!(notes[0].contains("main"), "{notes:?}");
    let two = "{containers: [{name: a, image: vllm}, {name: b, image: sglang, args: [--host=0.0.0.0]}]}";
    assert!(skipped(two, &options()).contains("--container"));
    let (spec, _) = injected(two, &Options { container: Some("b".to_owned()), ..options() });
    assert_eq!(spec["containers"][1]["args"], json!(["--host=0.0.0.0", "--host=127.0.0.1"]));
    assert!(skipped(two, &Options { container: Some("c".to_owned()), ..options() }).contains("a, b"));
    let router = "{containers: [{name: a, image: vllm-project/router}]}";
    assert!(skipped(router, &options()).contains("no container is recognised"));
    let unknown = "{containers: [{name: a, image: mine}]}";
    assert!(skipped(unknown, &options()).contains("--engine"));
    let (spec, _) = injected(unknown, &Options { engine: Some(Engine::Vllm), ..options() });
    assert!(arguments(&spec).contains(&"--set=observe.engine=vllm"));
}

#[test]
fn sidecar_is_the_first_init_container() {
    let spec = "{initContainers: [{name: get, image: g}], containers: [{name: c, image: vllm}]}";
    let names = |spec: &Value| -> Vec<String> {
        spec["initContainers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&injected(spec, &options()).0), ["tokometer", "get"]);
    assert_eq!(names(&injected(spec, &with(Mode::Redirect)).0), ["tokometer-redirect", "tokometer", "get"]);
}

#[test]
fn guaranteed_pod_stays_so_and_others_get_no_cpu_limit() {
    let resources =
        "resources: {limits: {cpu: 4, memory: 64Gi, nvidia.com/gpu: 1}, requests: {cpu: 4000m, memory: 65536Mi}}";
    let limits = |spec: &str, mode| {
        injected(spec, &with(mode)).0["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["resources"].clone())
            .collect::<Vec<_>>()
    };
    let guaranteed = format!("{{containers: [{{name: c, image: vllm, {resources}}}]}}");
    for resources in limits(&guaranteed, Mode::Redirect) {
        assert_eq!(resources["requests"], resources["limits"]);
        assert!(resources["limits"].get("cpu").is_some() && resources["limits"].get("memory").is_some());
    }
    for other in [
        format!("{{containers: [{{name: c, image: vllm, {resources}}}, {{name: d, image: d}}]}}"),
        format!("{{initContainers: [{{name: i, image: i}}], containers: [{{name: c, image: vllm, {resources}}}]}}"),
        format!(
            "{{resources: {{limits: {{cpu: 8, memory: 1Gi}}}}, containers: [{{name: c, image: vllm, {resources}}}]}}"
        ),
    ] {
        assert_eq!(limits(&other, Mode::Auto)[0]["limits"].get("cpu"), None, "{other}");
    }
}

#[test]
fn sidecar_has_a_cpu_limit_where_every_container_has_one() {
    let limited = "resources: {limits: {cpu: 4, memory: 1Gi}, requests: {cpu: 2}}";
    for (spec, expected) in [
        (format!("{{containers: [{{name: c, image: vllm, {limited}}}]}}"), Some(json!("500m"))),
        (format!("{{containers: [{{name: c, image: vllm, {limited}}}, {{name: d, image: d}}]}}"), None),
        (
            format!("{{initContainers: [{{name: i, image: i}}], containers: [{{name: c, image: vllm, {limited}}}]}}"),
            None,
        ),
    ] {
        let (injected, _) = injected(&spec, &with(Mode::Redirect));
        let redirect = &injected["initContainers"][0]["resources"];
        let sidecar = &injected["initContainers"][1]["resources"];
        assert_eq!(sidecar["limits"].get("cpu"), expected.as_ref(), "{spec}");
        assert_eq!(sidecar["requests"]["cpu"], if expected.is_some() { "250m" } else { "25m" }, "{spec}");
        assert_eq!(redirect.get("limits").is_some(), expected.is_some(), "{spec}");
    }
}

#[test]
fn pod_shutdown_waits_for_open_streams() {
    let (spec, notes) = injected(VLLM, &options());
    assert_eq!(spec["terminationGracePeriodSeconds"], 330);
    assert!(notes.iter().any(|note| note.contains("from 30 to 330")), "{notes:?}");
    assert_eq!(spec["containers"][0]["lifecycle"]["preStop"]["httpGet"], json!({"path": "/drain/wait", "port": 9464}));

    let own = "{terminationGracePeriodSeconds: 600, containers: [{name: c, image: vllm, lifecycle: {preStop: {exec: {command: [x]}}}}]}";
    let (spec, notes) = injected(own, &options());
    assert_eq!(spec["terminationGracePeriodSeconds"], 600);
    assert_eq!(spec["containers"][0]["lifecycle"], json!({"preStop": {"exec": {"command": ["x"]}}}));
    assert!(notes.iter().any(|note| note.contains("not changed")), "{notes:?}");
    assert!(inject(&deployment(own), &options()).unwrap().1[0].warnings[0].contains("preStop"));

    let other = "{terminationGracePeriodSeconds: 60, containers: [{name: c, image: vllm, lifecycle: {postStart: {exec: {command: [x]}}}}]}";
    let (spec, _) =
        injected(other, &Options { drain: std::time::Duration::from_secs(100), admin_port: 9999, ..options() });
    assert_eq!(spec["terminationGracePeriodSeconds"], 130);
    assert_eq!(spec["containers"][0]["lifecycle"]["preStop"]["httpGet"]["port"], 9999);
    assert_eq!(
        spec["initContainers"][0]["lifecycle"]["preStop"]["exec"]["command"][2],
        "--admin=http://127.0.0.1:9999"
    );
    assert!(arguments(&spec).contains(&"--set=process.grace_period=100s"));
}

#[test]
fn each_mode_connects_sidecar_and_server() {
    let (spec, _) = injected(VLLM, &with(Mode::Uds));
    assert_eq!(spec["containers"][0]["args"][2], "--uds=/run/tokometer/engine.sock");
    assert!(arguments(&spec).contains(&"--upstream=unix:/run/tokometer/engine.sock"));
    assert_eq!(spec["containers"][0]["volumeMounts"], spec["initContainers"][0]["volumeMounts"]);
    assert_eq!(spec["volumes"][0]["name"], spec["containers"][0]["volumeMounts"][0]["name"]);
    assert_eq!(spec["initContainers"][0]["securityContext"]["runAsUser"], 0, "the assumed user of the server");

    let (spec, _) =
        injected("{securityContext: {runAsUser: 1000}, containers: [{name: c, image: vllm}]}", &with(Mode::ShadowBind));
    assert_eq!(spec["containers"][0].get("args"), None);
    assert_eq!(spec["initContainers"][0]["securityContext"]["runAsUser"], 1000);
    assert!(arguments(&spec).contains(&"--upstream=127.0.0.1:8000"));

    let (spec, _) = injected(VLLM, &with(Mode::PortSwap));
    assert_eq!(spec["containers"][0]["args"][2], "--port=8001");
    assert_eq!(arguments(&spec)[1..3], ["--listen=[$(POD_IPS),127.0.0.1]:8000", "--upstream=127.0.0.1:8001"]);

    let (spec, _) = injected(VLLM, &with(Mode::Redirect));
    assert_eq!(
        spec["initContainers"][0]["securityContext"]["capabilities"],
        json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
    assert!(spec["initContainers"][0]["command"][1].as_str().unwrap().contains("tcp dport 8000 redirect to :15080"));
    assert_eq!(arguments(&spec)[1..3], ["--listen=[$(POD_IPS)]:15080", "--upstream=original"]);
    assert_eq!(spec["initContainers"][1]["securityContext"]["runAsNonRoot"], true);

    let (spec, _) = injected(VLLM, &with(Mode::Explicit));
    assert_eq!(arguments(&spec)[1..3], ["--listen=[$(POD_IPS)]:15080", "--upstream=127.0.0.1:8000"]);
    assert_eq!(spec["initContainers"][0]["ports"][1], json!({"name": "llm-traffic", "containerPort": 15080}));
}

#[test]
fn impossible_mode_is_explained_with_an_alternative() {
    let unnamed = "{containers: [{name: c, image: ollama/ollama}]}";
    assert!(skipped(unnamed, &with(Mode::Uds)).contains("Ollama cannot listen on a Unix socket"));
    let host = "{hostNetwork: true, containers: [{name: c, image: vllm}]}";
    assert!(skipped(host, &with(Mode::Redirect)).contains("another mode"));
    assert!(injected(host, &options()).1.iter().any(|note| note.contains("node's network")));
    let image = Options { redirect_image: None, ..with(Mode::Redirect) };
    assert!(skipped(VLLM, &image).contains("--redirect-image"));
    let user = "{securityContext: {runAsNonRoot: true}, containers: [{name: c, image: vllm}]}";
    assert!(skipped(user, &with(Mode::ShadowBind)).contains("runAsUser"));
    let unknown = Options { container: Some("c".to_owned()), ports: vec![80], ..options() };
    assert!(skipped("{containers: [{name: c, image: mine}]}", &unknown).contains("--engine"));
}

#[test]
fn unfit_pod_is_skipped() {
    let has = "{initContainers: [{name: tokometer, image: x}], containers: [{name: c, image: vllm}]}";
    assert!(skipped(has, &options()).contains("already"));
    let port = "{containers: [{name: c, image: vllm}, {name: p, image: p, ports: [{containerPort: 9464}, {containerPort: 9465}]}]}";
    assert!(skipped(port, &options()).contains("--admin-port of tokometer inject); port 9466 is free"));
    assert!(skipped("{os: {name: windows}, containers: [{name: c, image: vllm}]}", &options()).contains("Windows"));
}

#[test]
fn low_port_needs_no_root() {
    let tgi = "{containers: [{name: c, image: text-generation-inference, args: [--model-id, m]}]}";
    let (spec, _) = injected(tgi, &options());
    assert_eq!(
        spec["securityContext"]["sysctls"],
        json!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}])
    );
    assert_eq!(injected(VLLM, &options()).0.get("securityContext"), None);
}

#[test]
fn extra_variables_reach_the_sidecar() {
    let variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://c:4318".to_owned())];
    let (spec, _) = injected(VLLM, &Options { variables, ..options() });
    let last = spec["initContainers"][0]["env"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last, json!({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"}));
    // The user's own value replaces one that the sidecar has by default.
    let variables = vec![("LLM_D_ROLE".to_owned(), "decode".to_owned())];
    let (spec, _) = injected(VLLM, &Options { variables, ..options() });
    let all = spec["initContainers"][0]["env"].as_array().unwrap().clone();
    let roles: Vec<&Value> = all.iter().filter(|variable| variable["name"] == "LLM_D_ROLE").collect();
    assert_eq!(roles, [&json!({"name": "LLM_D_ROLE", "value": "decode"})]);
}

#[test]
fn group_without_a_leader_template_is_warned_of() {
    let pod = "{spec: {containers: [{name: c, image: vllm/vllm-openai}]}}";
    let templates = [format!("workerTemplate: {pod}"), format!("leaderTemplate: {pod}, workerTemplate: {pod}")];
    for (templates, expected) in templates.into_iter().zip([true, false]) {
        let text = format!("kind: LeaderWorkerSet\nspec: {{leaderWorkerTemplate: {{{templates}}}}}\n");
        let (_, reports) = inject(&text, &options()).unwrap();
        let is_warned = reports[0].warnings.iter().any(|text| text.contains("workers get the sidecar too"));
        assert_eq!((reports[0].outcome, is_warned), (Outcome::Injected, expected), "{templates}");
    }
}
