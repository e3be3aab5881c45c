//! Properties of injection into arbitrary pods.

use proptest::prelude::*;
use tokometer_operator::inject::{Mode, Options, Outcome, inject, remove};

use super::options;

fn maybe(text: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(text.to_owned())]
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(texts).prop_map(str::to_owned)
}

/// A server container.
fn container() -> impl Strategy<Value = String> {
    let image = one_of(&[
        "image: vllm/vllm-openai:v1",
        "image: ollama/ollama",
        "image: lmsysorg/sglang",
        "image: llama.cpp:server",
        "image: text-generation-inference",
    ]);
    let command = one_of(&[
        "",
        "command: [vllm, serve, m], ",
        "command: [sh, -c, x], ",
        "command: [sh, -c, 'vllm serve m --host ::'], ",
        "command: null, ",
    ]);
    let args =
        one_of(&["", "args: [], ", "args: [--model, m], ", "args: [--host, 0.0.0.0, --hostname=x], ", "args: null, "]);
    let env = one_of(&[
        "",
        "env: [], ",
        "env: [{name: OLLAMA_HOST, value: a}], ",
        "env: [{name: HOSTNAME, valueFrom: {fieldRef: {fieldPath: x}}}], ",
    ]);
    let lifecycle = one_of(&[
        "",
        "lifecycle: {}, ",
        "lifecycle: {preStop: {sleep: {seconds: 1}}}, ",
        "lifecycle: {postStart: {sleep: {seconds: 1}}}, ",
    ]);
    let probe = one_of(&[
        "",
        "livenessProbe: {httpGet: {port: 8000, path: /health}, periodSeconds: 30}, ",
        "livenessProbe: {timeoutSeconds: 4, tcpSocket: {port: 8000}, terminationGracePeriodSeconds: 7}, ",
        "startupProbe: {httpGet: {port: 8000}}, ",
    ]);
    let mounts = one_of(&["", "volumeMounts: [], ", "volumeMounts: [{name: v, mountPath: /v}], "]);
    (image, command, args, env, lifecycle, probe, mounts).prop_map(
        |(image, command, args, env, lifecycle, probe, mounts)| {
            format!("{{name: c, {command}{args}{env}{lifecycle}{probe}{mounts}{image}}}")
        },
    )
}

fn pod() -> impl Strategy<Value = String> {
    let metadata = one_of(&[
        "",
        "metadata: {}, ",
        "metadata: null, ",
        "metadata: {annotations: {}}, ",
        "metadata: {annotations: null}, ",
        "metadata: {annotations: {a/b: c}, name: n}, ",
    ]);
    let init =
        one_of(&["", "initContainers: [], ", "initContainers: null, ", "initContainers: [{name: i, image: i}], "]);
    let volumes = one_of(&["", "volumes: [], ", "volumes: [{name: v, emptyDir: {}}], "]);
    let context = one_of(&["", "securityContext: {}, ", "securityContext: {runAsUser: 7, sysctls: []}, "]);
    let grace = one_of(&["", "terminationGracePeriodSeconds: 5, ", "terminationGracePeriodSeconds: 5000, "]);
    (metadata, init, volumes, context, grace, maybe("hostNetwork: true, "), container()).prop_map(
        |(metadata, init, volumes, context, grace, host, container)| {
            format!("{{kind: Pod, {metadata}spec: {{{init}{volumes}{context}{grace}{host}containers: [{container}]}}}}")
        },
    )
}

fn choices() -> impl Strategy<Value = Options> {
    (proptest::sample::select(Mode::ALL.to_vec()), proptest::option::of(70u16..9000)).prop_map(|(mode, port)| Options {
        mode,
        ports: port.into_iter().collect(),
        redirect_image: Some("nft".to_owned()),
        ..options()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn inject_is_idempotent_and_remove_restores_the_manifest(pod in pod(), first in choices(), second in choices()) {
        // Normalises the pod to the output format of `remove`, so that texts can be compared.
        let plain = remove(&format!("---\n{pod}")).unwrap().0;
        let (once, reports) = inject(&plain, &first).unwrap();
        if reports[0].outcome == Outcome::Skipped {
            prop_assert_eq!(&once, &plain);
            prop_assert!(reports[0].notes[0].len() > 20, "{:?}", reports);
        } else {
            prop_assert_ne!(&once, &plain);
            prop_assert_eq!(&inject(&once, &first).unwrap().0, &once);
            prop_assert_eq!(&remove(&once).unwrap().0, &plain);
        }
        // Injecting again with other options replaces the first injection.
        let (anew, reports) = inject(&once, &second).unwrap();
        if reports[0].outcome == Outcome::Injected {
            prop_assert_eq!(&anew, &inject(&plain, &second).unwrap().0);
        } else {
            prop_assert_eq!(&anew, &once);
        }
    }

    #[test]
    fn any_text_is_processed_or_rejected_without_a_panic(text in "\\PC{0,60}|(kind: Pod\n)?[a-z:\\[\\]{}&*!|>'\", \n-]{0,60}") {
        drop(inject(&text, &options()));
    }
}
