use std::sync::Arc;

use super::*;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The output of the given settings while `act` runs.
fn logged(settings: &Settings, act: impl FnOnce(&Handle)) -> String {
    let shared = Shared::default();
    let sink = shared.clone();
    let (subscriber, handle) = build(settings, false, Box::new(move || Ok(Box::new(sink.clone())))).unwrap();
    tracing::subscriber::with_default(subscriber, || act(&handle));
    assert!(handle.flush(Duration::from_secs(10)));
    drop(handle);
    String::from_utf8(shared.0.lock().unwrap().clone()).unwrap()
}

fn levels(text: &str) -> Levels {
    text.parse().unwrap()
}

#[test]
fn levels_apply_by_module_and_can_be_changed() {
    let settings = Settings { levels: levels("warn,relay=debug"), ..Settings::default() };
    let text = logged(&settings, |handle| {
        tracing::info!("not this");
        tracing::warn!("a warning");
        tracing::debug!(target: "tokometer_proxy::relay::copy", "a detail");
        tracing::error!(target: "other", "not this either");
        handle.set_levels(&levels("trace"));
        tracing::trace!("now this");
    });
    assert!(!text.contains("not this"), "{text}");
    for part in ["WARN", "a warning", "DEBUG tokometer_proxy::relay::copy: a detail", "now this"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn json_lines_are_objects_with_flat_fields() {
    let settings = Settings { json: true, ..Settings::default() };
    let text = logged(&settings, |_| tracing::info!(address = %"127.0.0.1:1", "Listening."));
    let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(line["message"], "Listening.");
    assert_eq!(line["address"], "127.0.0.1:1");
    assert_eq!(line["level"], "INFO");
    assert!(line["timestamp"].is_string() && line["target"].is_string());
}

#[test]
fn repeats_of_one_place_are_limited() {
    let settings = Settings { max_repeats: 3, ..Settings::default() };
    let text = logged(&settings, |_| {
        for number in 0..50 {
            tracing::warn!(number, "The same again.");
        }
        tracing::warn!("Something else.");
    });
    assert_eq!(text.matches("The same again.").count(), 3, "{text}");
    assert_eq!(text.matches("Something else.").count(), 1);
    assert_eq!(
        text.matches("47 more lines from tokometer::logging::tests:").count(),
        1,
        "lines dropped last are reported too: {text}"
    );
}

#[test]
fn summary_is_a_separate_line_in_both_formats() {
    let text = left_out_line(false, "relay:7", 98);
    assert!(text.ends_with(": 98 more lines from relay:7 were dropped in the last 10 s\n"), "{text}");
    let text = left_out_line(true, "relay:7", 98);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["left_out"], 98);
}

#[test]
fn invalid_levels_are_errors() {
    for (text, part) in [("loud", "unknown level `loud`"), ("info,relay=loud", "`loud`"), ("=debug", "has no module")] {
        let message = text.parse::<Levels>().unwrap_err();
        assert!(message.contains(part), "{text}: {message}");
    }
    assert_eq!(levels(""), Levels::default());
}

#[test]
fn log_crate_records_keep_their_target_and_level() {
    let settings = Settings { levels: levels("trace,pingora=trace"), max_repeats: 1, ..Settings::default() };
    let record = |level, target: &str, text: &str| {
        let text = format_args!("{text}").to_string();
        let arguments = format_args!("{text}");
        let record =
            tracing_log::log::Record::builder().level(level).target(target).line(Some(1)).args(arguments).build();
        tracing_log::format_trace(&record).unwrap();
    };
    use tracing_log::log::Level;
    let text = logged(&settings, |_| {
        record(Level::Info, "pingora_core::services::listening", "not this");
        record(Level::Warn, "pingora_core::services::listening", "a warning");
        record(Level::Warn, "pingora_core::services::listening", "the same place");
        record(Level::Error, "pingora_core::apps::http_app", "received text");
        record(Level::Error, "rustls", "received text");
    });
    assert!(text.contains("WARN pingora_core::services::listening: a warning"), "{text}");
    assert!(!text.contains("not this") && !text.contains("the same place") && !text.contains("received"), "{text}");
}
