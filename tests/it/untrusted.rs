//! The whole program between a server that echoes client input and clients that send fabricated names.

#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use tokometer::app::Instrument;
use tokometer::config::{Config, Environment, Flags};
use tokometer_proxy::listen::Address;

use crate::program::{get, value};
use crate::scrape::reading::until;

/// Reads the body of the next request; `None` at the end of the connection.
fn body(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            return Some(body);
        }
    }
}

/// A server whose response depends on the model name: 404 if it begins with `junk`, otherwise two token events and the
/// token counts at the end of the name. Both responses echo the name.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(body) = body(&mut reader) {
                    let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    stream.write_all(response(request["model"].as_str().unwrap()).as_bytes()).unwrap();
                }
            });
        }
    });
    address
}

fn response(model: &str) -> String {
    if model.starts_with("junk") {
        let error =
            format!(r#"{{"model":"{model}","error":{{"message":"no such model","type":"NotFoundError","code":404}}}}"#);
        let length = error.len();
        return format!(
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{error}"
        );
    }
    let (name, tokens) = model.split_once('=').unwrap();
    let chunk = |rest: &str| {
        format!("data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"{name}\",{rest}}}\n\n")
    };
    let token = |finish: &str| {
        chunk(&format!(r#""choices":[{{"index":0,"delta":{{"content":"word"}},"finish_reason":{finish}}}]"#))
    };
    let usage = format!(
        r#""choices":[],"usage":{{"prompt_tokens":{tokens},"completion_tokens":{tokens},"total_tokens":{tokens}}}"#
    );
    let body = [token("null"), token(r#""stop""#), chunk(&usage), "data: [DONE]\n\n".to_owned()].concat();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The program in front of `server`, with tenant accounting, prices and a budget.
fn program() -> Instrument {
    let upstream = server();
    let yaml = format!(
        "listeners: [{{listen: '127.0.0.1:1', upstream: '{upstream}'}}]\nadmin: {{listen: '127.0.0.1:0'}}\n\
         scrape: {{enabled: false}}\ntenants: {{enabled: true}}\n\
         prices: {{models: [{{model: '*', input_per_million: 1, output_per_million: 2}}]}}\n\
         budgets: [{{name: daily, tokens_per_day: 1000}}]\n",
    );
    let config =
        Config::from_layers(Some((Path::new("t.yaml"), yaml.as_str())), &Flags::default(), &Environment::default());
    let mut settings = config.unwrap().settings;
    settings.listeners[0].listen = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    Instrument::start(&settings, None, Arc::new(String::new)).unwrap()
}

/// Sends a streamed chat request for each model on one connection, and reads the responses.
fn ask<'a>(instrument: &Instrument, models: impl IntoIterator<Item = &'a str>) {
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("a TCP listener") };
    let mut stream = TcpStream::connect((host, port)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for model in models {
        let json = format!(r#"{{"model":"{model}","stream":true,"messages":[]}}"#);
        let length = json.len();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\ncontent-type: application/json";
        write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{json}").unwrap();
        assert!(body(&mut reader).is_some(), "a response for {model}");
    }
}

/// Sum of the series lines that contain all of these parts; 0 if there are none.
fn sum(page: &str, parts: &[&str]) -> f64 {
    let lines = page.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    lines.map(|line| value(line, parts).unwrap()).sum()
}

/// The metrics page once this many requests are counted. Waits, because bytes are forwarded before they are counted.
fn page_after(instrument: &Instrument, requests: f64) -> String {
    let page = || get(instrument.admin(), "/metrics");
    until("all requests are counted", || (sum(&page(), &["tokometer_requests_total{"]) == requests).then_some(()));
    // Reads the page again, because computed values on the first page may be older than its counters.
    page()
}

#[test]
fn junk_model_names_in_errors_do_not_displace_real_models() {
    let instrument = program();
    let junk: Vec<String> = (0..300).map(|n| format!("junk-{n}")).collect();
    ask(&instrument, junk.iter().map(String::as_str));
    ask(&instrument, ["real=7"]);
    let page = page_after(&instrument, 301.0);
    instrument.stop();
    assert_eq!(sum(&page, &["tokometer_output_tokens_total{", "gen_ai_response_model=\"real\""]), 7.0);
    assert_eq!(sum(&page, &["tokometer_live_tokens_total{", "gen_ai_response_model=\"real\""]), 7.0);
    assert_eq!(sum(&page, &["tokometer_cost_total{", "model=\"real\"", "source=\"exact\""]), 21e-6);
    assert_eq!(
        sum(&page, &["tokometer_requests_total{", "outcome=\"http_4xx\"", "gen_ai_request_model=\"other\""]),
        300.0
    );
    assert!(!page.contains("junk"), "an unconfirmed model name is not a label");
    assert!(sum(&page, &["tokometer_slo_", "model=\"real\""]) > 0.0);
    assert_eq!(sum(&page, &["tokometer_slo_", "model=\"other\""]), 0.0);
}

#[test]
fn implausible_usage_does_not_decrease_counters() {
    let instrument = program();
    let read = |requests| {
        let page = page_after(&instrument, requests);
        let names = [
            "output_tokens_total{",
            "live_tokens_total{",
            "tenant_output_tokens_total{",
            "cost_total{",
            "budget_spent_total{",
            "input_tokens_total{",
        ];
        // Costs are in millionths, so that integers are compared.
        names.map(|name| {
            let scale = if name.starts_with("cost") { 1e6 } else { 1.0 };
            (sum(&page, &[&format!("tokometer_{name}")]) * scale).round()
        })
    };
    ask(&instrument, ["real=100"]);
    let before = read(1.0);
    assert_eq!(before, [100.0, 100.0, 100.0, 300.0, 200.0, 100.0]);
    for absurd in ["real=18446744073709551615", "real=9007199254740993", "real=18446744073709551616"] {
        ask(&instrument, [absurd]);
    }
    // Each of the three requests adds a lower bound of two tokens, and no cost, because its input count is unknown.
    let between = read(4.0);
    assert_eq!(between, [106.0, 106.0, 106.0, 300.0, 206.0, 100.0]);
    ask(&instrument, ["real=100"]);
    assert_eq!(read(5.0), [206.0, 206.0, 206.0, 600.0, 406.0, 200.0]);
    instrument.stop();
}
